"""The vLLM engine without vLLM: the order of its steps, how long it is waited for, how it fails, what it changes."""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from bench.alarms import Watch
from bench.casting import make_cast
from bench.config import Run, TinyModel
from bench.config_compute import VllmEngine
from bench.dialect import ConfigError, to_yaml
from bench.engines import EngineFailed, EngineMismatch
from bench.generate import Completion, sample
from bench.generate_vllm import InProcess, Row, VllmGenerator
from bench.instruments import Instruments
from bench.learn_online import OnlineLearner
from bench.loading import build_run, engine_source, load_run, nested
from bench.memory import MemoryMeter
from bench.meter import PhaseClock, throughput
from bench.models import LanguageModel, create_tiny
from bench.rollout import Sampler
from bench.sides import side
from bench.train import execute
from bench.vllm_link import Child, ChildEngine, Limits, SharedWeights, spawn, start_child
from bench.vllm_process import load_weights

MakeRun = Callable[..., Run]
PROMPTS, KEYS = [[3, 4, 5], [4, 5]], [[1, 2], [3, 4]]
SAYS_HELLO = """
import sys, time
from multiprocessing.connection import Connection
line = Connection(int(sys.argv[2]))
line.send_bytes(b'{"say": "hello"}')
"""


def tiny_model(seed: int = 0) -> LanguageModel:
    size = TinyModel(hidden_size=32, num_layers=1, num_heads=1, intermediate_size=32, max_positions=16)
    return create_tiny(size, "0123456789+=", seed)


class StubLLM:
    """Writes down what is asked of it, in order."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def collective_rpc(self, method: str, kwargs: Mapping[str, Any]) -> None:
        names = [name for name, _ in kwargs["weights_iterator"]]
        self.log.append(f"{method} {len(names)}")

    def apply_model(self, function: Callable[[Any], None]) -> None:
        self.log.append(function.__name__)

    def reset_prefix_cache(self) -> None:
        self.log.append("reset_prefix_cache")


class LoggingBackend:
    """An engine whose samples are the suite's own, with noise on their log-probabilities."""

    longest = 16

    def __init__(self, model: LanguageModel, noise: float = 0.0) -> None:
        self.model, self.noise, self.log = model, noise, [""][:0]

    def load(self, network: Any) -> bool:
        load_weights(StubLLM(self.log), iter(network.named_parameters()))
        return True

    def sample(self, asked: Mapping[str, Any]) -> list[Row]:
        self.log.append("sample")
        options = {name: asked[name] for name in ("max_tokens", "temperature", "top_p")}
        found = sample(self.model, asked["prompts"], asked["keys"], **options)
        flat = [one for own in found for one in own]
        return [(list(one.token_ids), [x + self.noise for x in one.logps], one.terminated) for one in flat]

    def rest(self) -> None:
        self.log.append("rest")

    def close(self) -> None:
        self.log.append("close")


def test_vlm_01_weights_then_prefix_cache_then_samples_at_every_update() -> None:
    """Two updates with the same prompts: nothing is sampled before the new weights are in and the old keys are out."""
    model = tiny_model()
    backend = LoggingBackend(model)
    generate = VllmGenerator(VllmEngine(), lambda _: backend, exact=True)
    for _ in range(2):
        generate(model, PROMPTS, KEYS, max_tokens=4, temperature=1.0)
    generate.close()
    one = [f"reload_weights {len(list(model.network.named_parameters()))}", "repack_tied_head", "reset_prefix_cache"]
    assert backend.log == [*one, "sample", "rest", *one, "sample", "rest", "close"]
    assert generate.gap < 1e-5


class StubSleeper(StubLLM):
    """What a CUDA device has in the trainer's process, without CUDA: it can sleep, and it samples step by step."""

    def __init__(self, model: LanguageModel, log: list[str]) -> None:
        super().__init__(log)
        self.model, self.llm_engine, self.model_config = model, self, SimpleNamespace(max_model_len=16)
        self.waiting: list[Any] = []

    def wake_up(self, tags: Sequence[str]) -> None:
        self.log.append(f"wake_up {tags}")

    def sleep(self, level: int) -> None:
        self.log.append(f"sleep {level}")

    def enqueue(self, prompts: Sequence[Mapping[str, list[int]]], params: Sequence[Any], use_tqdm: bool) -> None:
        self.log.append(f"enqueue {len(prompts)}")
        for i, prompt in enumerate(prompts):
            ((one,),) = sample(self.model, [prompt["prompt_token_ids"]], [[i]], max_tokens=4, temperature=1.0)
            said = SimpleNamespace(token_ids=one.token_ids, logprobs=SimpleNamespace(logprobs=one.logps))
            said.finish_reason = "stop" if one.terminated else "length"
            self.waiting.append(SimpleNamespace(finished=True, request_id=str(i), outputs=[said]))

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list[Any]:
        return [self.waiting.pop()]


def test_vlm_01_on_cuda_too_and_asleep_between_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of keys and values is awake only when the weights are in, and is emptied before anything is sampled;
    from its start on, and after each call, the engine sleeps."""
    model, log, asked = tiny_model(), [""][:0], dict[str, Any]()

    def started(folder: str, **options: Any) -> StubSleeper:
        asked.update(options)
        return StubSleeper(model, log)

    package = ModuleType("vllm")
    package.LLM, package.SamplingParams = started, SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", package)
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, "1")
    generate = VllmGenerator(VllmEngine(), lambda _: InProcess("folder", {"seed": 0}), exact=True)
    for _ in range(2):
        assert [len(own) for own in generate(model, PROMPTS, KEYS, max_tokens=4, temperature=1.0)] == [2, 2]
    assert asked == {"enable_sleep_mode": True, "seed": 0}
    weights = [
        f"reload_weights {len(list(model.network.named_parameters()))}",
        "repack_tied_head",
        "reset_prefix_cache",
    ]
    loaded = ["wake_up ['weights']", *weights, "wake_up ['kv_cache']", "reset_prefix_cache"]
    assert log == ["sleep 2", *2 * [*loaded, "enqueue 4", "sleep 2"]]


@pytest.mark.parametrize(("noise", "exact", "word"), [(5e-4, True, "1e-04|0.0001"), (0.5, False, "max_mismatch")])
def test_another_models_log_probabilities_end_the_run(noise: float, exact: bool, word: str) -> None:
    model = tiny_model()
    generate = VllmGenerator(VllmEngine(), lambda _: LoggingBackend(model, noise), exact)
    with pytest.raises(EngineMismatch, match=word):
        generate(model, PROMPTS, KEYS, max_tokens=4, temperature=1.0)


@pytest.mark.parametrize("old_logp", ["recomputed", "sampler"])
def test_vlm_07_a_growing_mismatch_is_logged_warned_of_and_stopped(old_logp: str, tiny_run: MakeRun) -> None:
    """Noise of 0.5 nats on the engine's log-probabilities: the update's record shows it, an alarm names it, and the
    run ends before the next update."""
    run = tiny_run("grpo", **{"engine": "vllm", "warm_start": None, "rollout.old_logp": old_logp})
    instruments = Instruments(PhaseClock(), MemoryMeter("cpu"))
    noise = torch.Generator().manual_seed(0)

    def drifting(*arguments: Any, **options: Any) -> list[list[Completion]]:
        def moved(one: Completion) -> Completion:
            shifts = (0.5 * torch.randn(len(one.logps), generator=noise)).tolist()
            return Completion(one.token_ids, one.terminated, tuple(map(sum, zip(one.logps, shifts, strict=True))))

        return [[moved(one) for one in own] for own in sample(*arguments, **options)]

    cast = make_cast(run, create_tiny(run.model, run.alphabet, 0))  # type: ignore[arg-type]
    sampler = Sampler(run, run.task, drifting, instruments)
    updates = OnlineLearner(run, run.objective, cast, sampler, instruments).advance()  # type: ignore[arg-type]
    record = next(updates)
    assert record["mismatch/absdiff_mean"] == pytest.approx(0.5 * math.sqrt(2 / math.pi), rel=0.2)
    assert record["mismatch/kl_k3"] > 0.05
    if old_logp == "recomputed":  # otherwise the engine's are the old policy's, and there is nothing to weigh
        assert record["is_weight/max"] <= 2
    assert "engines_differ" in {alarm.name for alarm in Watch().see(record)}
    with pytest.raises(EngineMismatch, match=r"engine\.max_mismatch: .* more than the 0\.1 allowed"):
        next(updates)
    assert cast.progress.update == 1


def spawned(tmp_path: Path, program: str, limits: Limits) -> Child:
    return spawn(
        tmp_path / "engine.log", 1, limits, SharedWeights(tiny_model().network), (sys.executable, "-c", program)
    )


def test_vlm_09_an_engine_that_accepts_and_never_answers_is_named_in_time(tmp_path: Path) -> None:
    """The transport is there and says hello, and then nothing comes: no retry, no silence, and every limit on an
    answer is a minute at most."""
    assert Limits().answer <= 60
    child = spawned(tmp_path, SAYS_HELLO + "time.sleep(60)", Limits(answer=0.25))
    try:
        assert child.answer("while its process began", 30)["say"] == "hello"
        began = time.monotonic()
        with pytest.raises(EngineFailed, match=rf"process {child.process.pid} .*socket pair for 0\.25 s while it took"):
            child.ask("while it took the weights", {"ask": "load"})
        assert time.monotonic() - began < 5
        with pytest.raises(EngineFailed, match=r"for 0\.25 s while it sampled"):
            child.ask("while it sampled", {"prompts": [[1] * 10**6]})  # more than the socket takes unread
    finally:
        child.close()
    assert not child.folder.exists()


def test_vlm_09_an_engine_that_acknowledges_and_never_takes_the_weights_is_named_in_time(tmp_path: Path) -> None:
    """Weights are waited for as an answer is, for each tensor is a sign of life; only sampling may take longer."""
    model = tiny_model()
    weights = SharedWeights(model.network)
    program = SAYS_HELLO + """line.recv_bytes(); line.send_bytes(b'{"say": "busy"}'); time.sleep(60)"""
    limits = Limits(answer=0.25, work=8)
    child = spawn(tmp_path / "engine.log", 1, limits, weights, (sys.executable, "-c", program))
    engine = ChildEngine(child, weights, 16)
    try:
        assert child.answer("while its process began", 30)["say"] == "hello"
        began = time.monotonic()
        with pytest.raises(EngineFailed, match=r"for 0\.25 s while it took the weights"):
            engine.load(model.network)
        assert time.monotonic() - began < 5
    finally:
        engine.close()
    log: list[str] = []
    load_weights(StubLLM(log), [("first", 1), ("second", 2)], alive=lambda: log.append("alive"))
    assert log.count("alive") >= 2
    assert log[:2] == ["alive", "alive"], "a sign for each tensor, while they are taken"


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("import os; print('last words', flush=True); os.kill(os.getpid(), 9)", ["signal 9 (SIGKILL)", "last words"]),
        ("sys.exit('no such kernel')", ["exit code 1", "no such kernel"]),
        ("""line.send_bytes(b'{"say": "failed", "why": "ValueError: head of 16"}')""", ["ValueError: head of 16"]),
    ],
)
def test_an_engine_that_ends_is_told_with_its_signal_and_last_words(tmp_path: Path, end: str, words: list[str]) -> None:
    child = spawned(tmp_path, SAYS_HELLO + end, Limits(answer=20))
    try:
        child.answer("while its process began", 20)
        with pytest.raises(EngineFailed) as failure:
            child.answer("while it started", 20)
    finally:
        child.close()
    for word in (*words, "while it started", str(tmp_path / "engine.log")):
        assert word in str(failure.value)


def test_a_start_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(spawn, "__defaults__", ((sys.executable, "-c", "raise SystemExit('not here')"),))
    with pytest.raises(EngineFailed, match="not here"):
        start_child(tiny_model(), {}, tmp_path / "engine.log", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["engine.log"]


def test_shared_weights_know_what_changed() -> None:
    """However a parameter changes, and the child's view of the memory is the trainer's numbers."""
    model, other = tiny_model(), tiny_model(1)
    weights = SharedWeights(model.network)
    assert weights.take(model.network)
    assert not weights.take(model.network)
    model.network.lm_head.weight.data[0, 0] += 1
    assert weights.take(model.network)
    assert weights.take(other.network)
    for (name, parameter), (known, view) in zip(other.network.named_parameters(), weights.views, strict=True):
        assert name == known
        assert torch.equal(parameter, view)
    weights.given()
    assert len(weights.layout) == len(dict(model.network.named_parameters())), "a tied head is no parameter of its own"


BASE = {"task": "chain_sum", "rollout": {"prompts": 4, "group_size": 4}, "budget": {"updates": 4}}


def built(**knobs: Any) -> Run:
    fitting: dict[str, Any] = {"rollout.max_completion_tokens": 8}
    fitting |= {"optimizer.lr": 1e-3, "optimizer.microbatch_sequences": 8}
    return build_run(BASE, nested({**fitting, **knobs}))


@pytest.mark.parametrize(
    ("knobs", "kind"),
    [
        ({}, "no_correction"),
        ({"engine": "vllm"}, "token_truncate"),
        ({"engine": "vllm", "objective.mismatch.kind": "no_correction"}, "no_correction"),
        ({"engine": "vllm", "objective.mismatch": "sequence_mask"}, "sequence_mask"),
        ({"engine": "vllm", "objective.mismatch.high": 3.0}, "token_truncate"),
        ({"engine": "vllm", "rollout.old_logp": "sampler"}, "no_correction"),
    ],
)
def test_the_engines_own_log_probabilities_are_corrected_by_default(knobs: dict[str, Any], kind: str) -> None:
    objective = built(**knobs).dump()["objective"]
    assert objective["mismatch"]["kind"] == kind
    if kind == "token_truncate":
        assert objective["mismatch"]["high"] == knobs.get("objective.mismatch.high", 2.0)


def test_the_default_correction_is_told_and_read_back(tmp_path: Path) -> None:
    """A file that a run leaves behind reads as the same run, and objectives without an importance ratio have none."""
    run = built(engine="vllm")
    (tmp_path / "run.yaml").write_text(to_yaml(run.dump()))
    assert load_run(tmp_path / "run.yaml") == run
    (tmp_path / "own.yaml").write_text(to_yaml(built().dump()))
    own, with_engine = side(str(tmp_path / "own.yaml")), side(str(tmp_path / "run.yaml"))
    assert with_engine.source("objective.mismatch.kind") == "default with engine=vllm"
    assert engine_source(run, "mismatch") == with_engine.source("objective.mismatch.kind")
    assert own.source("objective.mismatch.kind") == "off: the algorithm does not have it"
    assert own.shown("objective.mismatch.kind") != with_engine.shown("objective.mismatch.kind")
    assert run.id != built().id
    assert "mismatch" not in built(algorithm="dpo", engine="vllm").dump()["objective"]


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"rollout.temperature": 0.001}, ["rollout.temperature: 0.001", "0.01"]),
        ({"parallel.processes": 2}, ["parallel.processes=1"]),
        ({"compute.autocast": "bfloat16"}, ["compute.autocast=none"]),
    ],
)
def test_what_the_engine_cannot_do_is_a_mistake_in_the_configuration(knobs: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as mistakes:
        built(**{"engine": "vllm", **knobs})
    (line,) = [line for line in mistakes.value.lines if "vllm" in line.lower()]
    for word in words:
        assert word in line


def test_an_engine_that_is_not_installed_ends_the_run_before_any_model(tiny_run: MakeRun, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a machine with CUDA may have the package")
    run = tiny_run("grpo", **{"engine": "vllm", "device": "cuda", "warm_start.seed": 77})
    status = execute(run, tmp_path / "run")
    assert status.state == "failed"
    assert "`pip install vllm`" in (status.error or "")
    assert not list((tmp_path / "run").glob("eval/*"))


def test_the_push_and_the_start_have_phases_of_their_own() -> None:
    """Their seconds leave the phase around them; the start is no training time."""
    ticks = iter([0.0, 1.0, 4.0, 10.0, 10.0, 12.0])
    clock = PhaseClock(lambda: next(ticks))
    with clock.phase("rollout"), clock.instead("sync"):
        pass
    with clock.instead("engine_start"):
        pass
    clock.count(generated=70, completions=7)
    record = clock.take(attempt=1, update=1, metered=False)
    assert record["seconds"] == {"rollout": 7.0, "sync": 3.0, "engine_start": 2.0}
    rates = throughput([record])
    assert rates["generated_tokens_per_second"] == 7.0
    assert rates["phases"]["rollout"]["tokens_per_second"] == 10.0
