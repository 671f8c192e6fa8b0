"""What only a CUDA device can show of the vLLM engine: agreement, sleep and wake, and memory given back."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.config import Run, TinyModel
from bench.engines import engine_of
from bench.generate import Completion, sample
from bench.loading import build_run, nested
from bench.models import LanguageModel, create_tiny
from bench.policy import Sequences, completion_logits, token_logps
from bench.seeding import stream_key

pytestmark = pytest.mark.gpu
PROMPTS = [[3 + (7 * i + 5 * j) % 13 for j in range(2 + i % 5)] for i in range(8)]


@pytest.fixture
def run() -> Run:
    if not torch.cuda.is_available() or importlib.util.find_spec("vllm") is None:
        pytest.skip("needs a CUDA device and the package vllm")
    knobs: dict[str, Any] = {"engine": "vllm", "device": "cuda", "model.num_heads": 2, "optimizer.lr": 1e-3}
    knobs |= {"rollout.prompts": 4, "rollout.group_size": 4, "rollout.max_completion_tokens": 8, "budget.updates": 4}
    return build_run({"task": "chain_sum"}, nested({**knobs, "optimizer.microbatch_sequences": 8}))


def medium(seed: int) -> LanguageModel:
    """Heads of 64, for which every attention kernel has a form."""
    size = TinyModel(hidden_size=256, num_layers=2, num_heads=4, intermediate_size=256, max_positions=64)
    model = create_tiny(size, "0123456789+-= ", seed)
    with torch.no_grad():
        for parameter in model.network.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    model.network.to("cuda")  # pyright: ignore[reportArgumentType]
    return model


def keys_of(group: int, name: int) -> list[list[int]]:
    return [[stream_key(0, "gpu", name, i, m) for m in range(group)] for i in range(len(PROMPTS))]


def compared(model: LanguageModel, found: Sequence[Sequence[Completion]]) -> tuple[Sequences, float]:
    """The samples as sequences, and the mean gap of a token's log-probability."""
    flat = [(prompt, one) for prompt, own in zip(PROMPTS, found, strict=True) for one in own]
    sequences = Sequences.of([p for p, _ in flat], [one.token_ids for _, one in flat], model.pad_id).to("cuda")
    with torch.no_grad():
        trained = token_logps(model.network, sequences, 1.0)
    width = trained.shape[1]
    rows = [[*one.logps, *[0.0] * (width - len(one.logps))] for _, one in flat]
    return sequences, float((trained - torch.tensor(rows, device="cuda"))[sequences.mask].abs().mean())


def test_vlm_02_the_mismatch_stays_at_the_level_of_the_start(run: Run) -> None:
    """Five updates with weights that change: the mean gap does not grow beyond three times the first."""
    model = medium(0)
    optimizer = torch.optim.AdamW(model.network.parameters(), lr=1e-3)
    gaps: list[float] = []
    with engine_of(run) as generate:
        for update in range(6):
            found = generate(model, PROMPTS, keys_of(4, update), max_tokens=16, temperature=1.0)
            sequences, gap = compared(model, found)
            gaps.append(gap)
            logps = completion_logits(model.network, sequences).log_softmax(-1)
            picked = logps.gather(-1, sequences.completion_ids[..., None]).squeeze(-1) * sequences.mask
            picked.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert max(gaps[1:]) <= max(3 * gaps[0], 1e-5)


def test_vlm_03_after_sleep_and_wake_the_engine_samples_as_a_fresh_one(run: Run) -> None:
    """Sleep at level 2 drops the weights: what comes after a wake and a push is the new model's, greedily."""
    first, second = medium(0), medium(1)
    options = {"max_tokens": 16, "temperature": 0.0}
    with engine_of(run) as generate:
        generate(first, PROMPTS, keys_of(1, 0), **options)
        woken = generate(second, PROMPTS, keys_of(1, 0), **options)
    with engine_of(run) as generate:
        fresh = generate(second, PROMPTS, keys_of(1, 0), **options)
    own = sample(second, PROMPTS, keys_of(1, 0), **options)
    tokens = [[one.token_ids for row in found for one in row] for found in (woken, fresh, own)]
    assert tokens[0] == tokens[1] == tokens[2]


def test_vlm_10_three_engines_in_a_row_leave_the_memory_as_it_was(run: Run, tmp_path: Path) -> None:
    """Free memory before the third is that before the first, within 1 %."""
    model = medium(0)
    free: list[int] = []
    for trial in range(3):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free.append(torch.cuda.mem_get_info()[0])
        with engine_of(run, tmp_path / "engine.log") as generate:
            generate(model, PROMPTS, keys_of(2, trial), max_tokens=8, temperature=1.0)
    # The first engine loads kernels and a context's worth of libraries once for all.
    assert free[2] == pytest.approx(free[1], rel=0.01)
    assert free[2] == pytest.approx(free[0], rel=0.01)
