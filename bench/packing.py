"""Packed passes: every prompt once and no padding, as one row of tokens through a transformers model's own layers.

The row holds the distinct prompts, then the completions. All of a layer but its attention acts on each token alone, so
only attention has to know which tokens belong together: prompts attend to themselves, completions to their prompt and
themselves. The last token of a completion predicts nothing, so it is left out unless its state is asked for.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

ATTENTION = "bench_packed"
PACKED_MODELS = frozenset({"gpt_neox", "gpt2", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"})
"""Values of `config.model_type` whose attention is nothing but causal softmax attention; each is tested."""


_FEW_SCORES = 2**21
"""Attention scores of a layer up to which they are kept for the backward pass: 8 MiB."""


@dataclass(frozen=True)
class Layout:
    """Where each token of some prompts and completions stands, in the row and in the rectangles of attention.

    A slot is a place in a rectangle, counted row by row. Slots beyond the end of a sequence hold any token: no other
    token attends to them, and nothing reads what they attend to.
    """

    ids: Tensor
    """int64 (1, tokens): the row."""
    positions: Tensor
    """int64 (1, tokens): how far each token stands from the start of its own sequence."""
    num_prompts: int
    num_prompt_tokens: int
    prompt_slots: Tensor
    """int64 (prompts * width,): the token in each slot of the prompts' rectangle, counted among prompt tokens."""
    prompt_home: Tensor
    """int64 (prompt tokens,): the slot of each prompt token."""
    prompt_of: Tensor
    """int64 (rows,): the prompt of each completion."""
    members: int | None
    """Completions of each prompt where all prompts have equally many, one prompt's after the other's."""
    own_slots: Tensor
    """int64 (rows * width,): the token in each slot of the completions' rectangle, counted among completion tokens."""
    own_home: Tensor
    """int64 (completion tokens,): the slot of each completion token."""
    visible: Tensor
    """bool (rows, 1, width, prompt width + width): what each completion token attends to."""
    predictors: Tensor
    """int64 (scored,): the token of the row whose state predicts each completion token, completion by completion."""
    targets: Tensor
    """int64 (scored,): the completion tokens themselves."""
    last: Tensor
    """int64 (rows,): the token of the row whose state is that after the completion's last token that is in the row."""
    spread: Tensor
    """int64 (rows * longest,): the scored token in each slot of the completions' full rectangle, last tokens included;
    anything beyond an end."""
    spread_home: Tensor
    """int64 (scored,): the slot of each scored token."""

    @cached_property
    def bias(self) -> Tensor:
        """float32, shaped as `visible`: 0 where it is True and -inf elsewhere."""
        return torch.zeros(self.visible.shape, device=self.visible.device).masked_fill_(~self.visible, -torch.inf)

    def to(self, device: torch.device | str) -> "Layout":
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{name: t.to(device) for name, t in tensors.items() if isinstance(t, Tensor)})


def layout_of(prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], *, with_last: bool) -> Layout:
    """The layout of completions and their prompts; equal prompts enter once.

    Args:
        prompts: token ids, one list for each completion, none empty.
        completions: token ids, none empty.
        with_last: whether the last token of each completion is in the row, for the state after it.
    """
    first: dict[tuple[int, ...], int] = {}
    prompt_of = np.array([first.setdefault(tuple(prompt), len(first)) for prompt in prompts])
    unique = list(first)
    fed = completions if with_last else [completion[:-1] for completion in completions]
    sizes, own = np.array([len(p) for p in unique]), np.array([len(c) for c in fed])
    scored = np.array([len(c) for c in completions])
    before, start = int(sizes.sum()), np.concatenate([[0], np.cumsum(own)[:-1]])
    prompt_slots, prompt_home = _rectangle(sizes)
    own_slots, own_home = _rectangle(own)
    spread, spread_home = _rectangle(scored)
    ends = np.cumsum(sizes) - 1
    # The first token of a completion is predicted by its prompt's last one, each other by the one before it.
    ahead = _inside(scored)
    predictors = np.where(
        ahead == 0, np.repeat(ends[prompt_of], scored), before + np.repeat(start, scored) + np.maximum(ahead - 1, 0)
    )
    last = np.where(own > 0, before + start + own - 1, ends[prompt_of])
    positions = [_inside(sizes), _inside(own) + np.repeat(sizes[prompt_of], own)]
    counts = np.bincount(prompt_of)
    even = bool((counts == counts[0]).all()) and bool((np.diff(prompt_of) >= 0).all())
    return Layout(
        ids=_tensor([t for p in unique for t in p] + [t for c in fed for t in c])[None, :],
        positions=_tensor(np.concatenate(positions))[None, :],
        num_prompts=len(unique),
        num_prompt_tokens=before,
        prompt_slots=_tensor(prompt_slots),
        prompt_home=_tensor(prompt_home),
        prompt_of=_tensor(prompt_of),
        members=int(counts[0]) if even else None,
        own_slots=_tensor(own_slots),
        own_home=_tensor(own_home),
        visible=torch.from_numpy(_visible(sizes[prompt_of], own))[:, None],
        predictors=_tensor(predictors),
        targets=_tensor([t for c in completions for t in c]),
        last=_tensor(last),
        spread=_tensor(spread),
        spread_home=_tensor(spread_home),
    )


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.int64))


def _inside(sizes: np.ndarray) -> np.ndarray:
    """For sequences of these sizes, one after the other: how far each token is from the start of its own."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _visible(before: np.ndarray, own: np.ndarray) -> np.ndarray:
    """bool (rows, width, prompt width + width): a token sees its whole prompt, and its own completion up to itself."""
    width = int(own.max())
    prompt = np.arange(int(before.max()))[None, None, :] < before[:, None, None]
    causal = np.tri(width, dtype=bool)
    rows = len(own)
    return np.concatenate(
        [np.broadcast_to(prompt, (rows, width, prompt.shape[2])), np.broadcast_to(causal, (rows, width, width))], axis=2
    )


def _rectangle(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For sequences of these sizes, one after the other: the token in each slot, and the slot of each token."""
    width, start = int(sizes.max()), np.cumsum(sizes) - sizes
    column = np.arange(width)[None, :]
    # A slot beyond the end holds the sequence's first token, or any where there is none.
    slots = start[:, None] + np.where(column < sizes[:, None], column, 0)
    home = np.repeat(np.arange(len(sizes)) * width - start, sizes) + np.arange(sizes.sum())
    return np.minimum(slots, max(int(sizes.sum()) - 1, 0)).reshape(-1), home


def packs(network: PreTrainedModel) -> bool:
    """Whether packed passes are exact for this network: a family that is tested, all of whose layers see everything."""
    config = network.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or []
    sliding = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return config.model_type in PACKED_MODELS and not sliding and all(kind == "full_attention" for kind in kinds)


def packed_states(base: PreTrainedModel, layout: Layout) -> Tensor:
    """Last hidden states of the row: (tokens, hidden size), in the model's precision.

    Args:
        base: the model without its head, of a kind that `packs`.
        layout: on the model's device.
    """
    with attention_of(base.config, ATTENTION):
        output = base(input_ids=layout.ids, position_ids=layout.positions, use_cache=False, layout=layout)
    return output.last_hidden_state[0]


@contextmanager
def attention_of(config: PreTrainedConfig, kind: str | None) -> Iterator[None]:
    """A network with another implementation of attention: its layers look it up in the configuration at each call."""
    before = config._attn_implementation
    config._attn_implementation = kind
    try:
        yield
    finally:
        config._attn_implementation = before


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    *,
    layout: Layout,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed row, as transformers calls it.

    Args:
        query: (1, heads, tokens, head size); `key` and `value` may have fewer heads.
        attention_mask: None, as transformers makes no mask for an attention that it does not know.
        others: what transformers hands to every attention, such as dropout, which is 0 in eval mode.

    Returns:
        (1, tokens, heads, head size), and no attention weights.
    """
    assert attention_mask is None, "a packed row has its own idea of what is visible"
    assert not others.get("dropout"), "the suite's models are always in eval mode"
    parts = [layout.num_prompt_tokens, layout.ids.shape[1] - layout.num_prompt_tokens]
    (q_prompt, q_own), (k_prompt, k_own), (v_prompt, v_own) = (
        states[0].transpose(0, 1).split(parts) for states in (query, key, value)
    )
    grouped = query.shape[1] != key.shape[1]
    q, k, v = (_shaped(t, layout.prompt_slots, layout.prompt_home, layout) for t in (q_prompt, k_prompt, v_prompt))
    out = _attend(q, k, v, None, scaling, grouped)
    outputs = [_Move.apply(out.flatten(0, 1), layout.prompt_home, layout.prompt_slots)]
    if parts[1]:
        own = [_shaped(t, layout.own_slots, layout.own_home, layout) for t in (q_own, k_own, v_own)]
        keys, values = (torch.cat([_shared(a, layout), b], dim=1) for a, b in ((k, own[1]), (v, own[2])))
        config = module.config
        assert isinstance(config, PreTrainedConfig), "an attention module of transformers has one"
        if attends_by_products(layout, config):
            out = _attend_by_products(own[0], keys, values, layout.bias, scaling)
        else:
            out = _attend(own[0], keys, values, layout.visible, scaling, grouped)
        outputs.append(_Move.apply(out.flatten(0, 1), layout.own_home, layout.own_slots))
    return torch.cat(outputs)[None], None


def attends_by_products(layout: Layout, config: PreTrainedConfig) -> bool:
    """Whether the completions of this row attend by batched products, whose scores are kept, or by the fused kernel."""
    num_scores = layout.visible.numel() * config.get_text_config().num_attention_heads
    return layout.visible.device.type == "cpu" and num_scores <= _FEW_SCORES


def _shaped(tokens: Tensor, slots: Tensor, home: Tensor, layout: Layout) -> Tensor:
    """Tokens (number, heads, size) in their slots: (sequences, width, heads, size)."""
    rows = layout.num_prompts if slots is layout.prompt_slots else len(layout.prompt_of)
    return _Move.apply(tokens, slots, home).view(rows, -1, *tokens.shape[1:])


def _shared(prompts: Tensor, layout: Layout) -> Tensor:
    """Each completion's prompt: (prompts, width, ...) to (rows, width, ...)."""
    if layout.members is None:
        return prompts.index_select(0, layout.prompt_of)
    return prompts[:, None].expand(-1, layout.members, *[-1] * (prompts.dim() - 1)).flatten(0, 1)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, scaling: float | None, grouped: bool
) -> Tensor:
    """Softmax attention of (sequences, width, heads, size); causal where nothing else is said."""
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    out = scaled_dot_product_attention(
        q, k, v, attn_mask=visible, is_causal=visible is None, scale=scaling, enable_gqa=grouped
    )
    return out.transpose(1, 2)


def _attend_by_products(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scaling: float | None) -> Tensor:
    """The same by two batched products and a softmax, which keeps the scores: for short sequences twice as fast on a
    CPU, most of all in the backward pass. Queries that share a key's head are rows of one product."""
    rows, width, heads, size = query.shape
    by_head = query.transpose(1, 2) * (size**-0.5 if scaling is None else scaling)
    folded = by_head.reshape(rows, key.shape[2], -1, size)
    scores = (folded @ key.permute(0, 2, 3, 1)).view(rows, heads, width, -1) + bias
    shares = scores.softmax(dim=-1).to(value.dtype).view(rows, key.shape[2], -1, scores.shape[-1])
    return (shares @ value.transpose(1, 2)).view(rows, heads, width, size).transpose(1, 2)


def spread(scored: Tensor, layout: Layout) -> Tensor:
    """One number of each scored token in a rectangle: (rows, longest completion); anything beyond an end."""
    return _Move.apply(scored, layout.spread, layout.spread_home).view(len(layout.prompt_of), -1)


class _Move(torch.autograd.Function):
    """Rows moved by an index, the gradient by its inverse: no sums, where autograd would scatter and add.

    The two agree because each row has one home; what lies in the other slots is never read, so its gradient is 0.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(index, inverse)
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        index, inverse = ctx.saved_tensors
        if len(inverse) <= len(index):
            return gradients[0].index_select(0, inverse), None, None
        # From slots to tokens: what has a home takes its gradient there, the other slots take none.
        result = gradients[0].new_zeros(len(inverse), *gradients[0].shape[1:])
        return result.index_copy(0, index, gradients[0]), None, None


AttentionInterface.register(ATTENTION, packed_attention)
