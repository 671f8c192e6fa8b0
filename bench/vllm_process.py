"""The vLLM side: what is asked of an `LLM` object, and the process that does so on a machine without CUDA.

vLLM's CPU build changes the process that it runs in: it replaces `torch.set_num_threads`, binds memory to a node and
draws from torch's generator. So it has a process of its own. That talks to the trainer in JSON messages over a socket
pair, reads the weights from memory that both share, and ends when the trainer does.
"""

import ctypes
import json
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

SECONDS_BETWEEN_SIGNS = 1.0
_PR_SET_PDEATHSIG = 1


def load_weights(llm: Any, weights: Iterable[tuple[str, Any]], alive: Callable[[], None] = lambda: None) -> None:
    """Replace the engine's weights, and drop the keys and values that the old ones made.

    Args:
        weights: names as in the model's checkpoint, and tensors.
        alive: called after each tensor, and after the work that follows the last.
    """
    llm.collective_rpc("reload_weights", kwargs={"weights_iterator": _signed(weights, alive)})
    alive()
    llm.apply_model(repack_tied_head)
    alive()
    llm.reset_prefix_cache()


def _signed(weights: Iterable[tuple[str, Any]], alive: Callable[[], None]) -> Iterator[tuple[str, Any]]:
    for one in weights:
        yield one
        alive()


def repack_tied_head(network: Any) -> None:
    """Make the output layer read the new embeddings where it shares them.

    Reloading repacks the layers that it loads. A tied output layer is not loaded itself, and on a CPU would go on
    with its packed copy of the old embeddings, six nats off.
    """
    head: Any = getattr(network, "lm_head", None)
    embeddings = getattr(getattr(network, "model", None), "embed_tokens", None)
    tied = head is embeddings or getattr(getattr(network, "config", None), "tie_word_embeddings", False)
    method = getattr(head, "quant_method", None)
    if tied and method is not None:
        method.process_weights_after_loading(head)


def sampled(
    llm: Any, asked: Mapping[str, Any], own_seeds: bool, alive: Callable[[], None] = lambda: None
) -> list[tuple[list[int], list[float], bool]]:
    """Token ids, their log-probabilities and whether an end token came, of each completion in (prompt, member) order.

    Args:
        asked: `prompts` (token ids), `keys` (one a completion of each prompt), `max_tokens`, `temperature`, `top_p`,
            `ends` (token ids) and `seed`.
        own_seeds: every completion is drawn from its own key; otherwise the call is, from `seed`.
        alive: called after each step of the engine.
    """
    import torch
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]

    torch.manual_seed(asked["seed"])
    common = {name: asked[name] for name in ("max_tokens", "temperature", "top_p")}
    # Ends are given as such: what the engine would read from the model's files may be less than the trainer's.
    common |= {"stop_token_ids": asked["ends"], "ignore_eos": True, "detokenize": False}
    # Under a nucleus the engine gives its probabilities within the nucleus, which nobody asked for.
    common |= {"logprobs": 0, "flat_logprobs": True} if asked["top_p"] == 1 else {}
    prompts: list[dict[str, list[int]]] = []
    params: list[Any] = []
    for prompt, keys in zip(asked["prompts"], asked["keys"], strict=True):
        prompts += [{"prompt_token_ids": list(prompt)} for _ in keys]
        params += [SamplingParams(**common, seed=key if own_seeds else None) for key in keys]
    llm.enqueue(prompts, params, use_tqdm=False)
    finished: list[Any] = []
    while llm.llm_engine.has_unfinished_requests():
        finished += [output for output in llm.llm_engine.step() if output.finished]
        alive()
    finished.sort(key=lambda output: int(output.request_id))
    assert len(finished) == len(prompts), "the engine answers every request"
    said = [output.outputs[0] for output in finished]
    return [
        (list(one.token_ids), list(one.logprobs.logprobs) if one.logprobs else [], one.finish_reason == "stop")
        for one in said
    ]


def widen_heads() -> None:
    """Let attention take heads of any size: those that it has no kernel for are padded with zeros, which change no
    product, and the scale stays the model's own. The CPU build knows no heads of 8, 16 or 48 numbers.
    """
    from torch.nn.functional import pad
    from vllm.model_executor.layers.attention import Attention  # pyright: ignore[reportMissingImports]
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend  # pyright: ignore[reportMissingImports]

    layer: Any = Attention
    init, forward, known = layer.__init__, layer.forward, CPUAttentionBackend.get_supported_head_sizes()

    def wide_init(self: Any, num_heads: int, head_size: int, scale: float, *arguments: Any, **options: Any) -> None:
        own = head_size if options.get("head_size_v") else min((n for n in known if n >= head_size), default=head_size)
        init(self, num_heads, own, scale, *arguments, **options)
        self.narrow = head_size

    def wide_forward(self: Any, query: Any, key: Any, value: Any, *arguments: Any, **options: Any) -> Any:
        size, heads, groups = self.narrow, self.num_heads, self.num_kv_heads
        if size == self.head_size:
            return forward(self, query, key, value, *arguments, **options)
        wide = [
            pad(given.reshape(-1, count, size), (0, self.head_size - size)).flatten(1)
            for given, count in ((query, heads), (key, groups), (value, groups))
        ]
        return forward(self, *wide).view(-1, heads, self.head_size)[..., :size].flatten(1)

    layer.__init__, layer.forward = wide_init, wide_forward


def end_with_parent(parent: int) -> None:
    """Have the system end this process when the one that started it ends, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it was asked for
        os._exit(1)


def shared_views(memory: mmap.mmap, layout: Sequence[tuple[str, Sequence[int], int]]) -> list[tuple[str, Any]]:
    """Names and float32 tensors that lie in the shared memory; `layout` gives shapes, and offsets in numbers."""
    import torch

    flat = torch.frombuffer(memory, dtype=torch.float32)
    shapes = [(name, torch.Size(shape), offset) for name, shape, offset in layout]
    return [(name, flat[offset : offset + shape.numel()].view(shape)) for name, shape, offset in shapes]


class Line:
    """The child's end of the socket pair."""

    def __init__(self, descriptor: int) -> None:
        self.connection = Connection(descriptor)
        self.spoke = time.monotonic()

    def hear(self) -> Any:
        return json.loads(self.connection.recv_bytes())

    def say(self, what: str, **more: Any) -> None:
        self.connection.send_bytes(json.dumps({"say": what, **more}).encode())
        self.spoke = time.monotonic()

    def alive(self) -> None:
        """A sign of life, at most once a second."""
        if time.monotonic() - self.spoke > SECONDS_BETWEEN_SIGNS:
            self.say("busy")


def serve(line: Line, memory: mmap.mmap) -> None:
    """Start an engine as the first message says, then do what the others ask, until the other end is closed."""
    line.say("hello")
    order = line.hear()
    from vllm import LLM  # pyright: ignore[reportMissingImports]

    widen_heads()
    llm = LLM(order["model"], **order["options"])
    views = shared_views(memory, order["layout"])
    line.say("ready", longest=llm.model_config.max_model_len)
    while True:
        asked = line.hear()
        line.say("busy")
        if asked["ask"] == "load":
            load_weights(llm, views, line.alive)
            line.say("done")
        else:
            line.say("done", rows=sampled(llm, asked, own_seeds=True, alive=line.alive))


def main() -> None:
    """Serve over the descriptors named on the command line: the trainer's process, the socket and the memory."""
    parent, socket, shared, size = map(int, sys.argv[1:])
    end_with_parent(parent)
    line = Line(socket)
    code = 1
    try:
        serve(line, mmap.mmap(shared, size))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        code = 0
    except BaseException as error:
        traceback.print_exc()
        line.say("failed", why=f"{type(error).__name__}: {error}")
    sys.stderr.flush()
    os._exit(code)  # the engine's own farewell takes seconds and has nothing to save


if __name__ == "__main__":
    main()
