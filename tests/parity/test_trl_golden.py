"""Our compositions give the losses, gradients and advantages that TRL 1.16 gave when they were stored; needs no TRL."""

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch

from bench.conformance.golden import FAMILIES, read_golden, write_golden
from bench.conformance.trl_compare import Online, differences, own_outcome
from bench.conformance.trl_dpo import DpoSettings
from bench.conformance.trl_grid import CLIPPED, cases
from bench.conformance.trl_grpo import GrpoSettings
from bench.conformance.trl_mapping import REDUCTIONS, objective_for
from bench.conformance.trl_rloo import RlooSettings

FOLDER = Path(__file__).parent / "golden"
STORED = {entry.case.name: entry for family in FAMILIES for entry in read_golden(FOLDER / f"{family}.json")}
TOLERANCE = 1e-6
CLEAR = 1e-3


@pytest.mark.parametrize("name", STORED)
def test_equals_trl(name: str) -> None:
    stored = STORED[name]
    case = stored.case
    own = own_outcome(stored.inputs, case.settings, case.num_microbatches)
    found = differences(own, stored.outcome)
    assert {name: size for name, size in found.items() if name in case.compares and not size <= TOLERANCE} == {}


def test_the_golden_files_hold_the_grid() -> None:
    """A case that was added or changed without a new capture would be compared with nothing."""
    assert [entry.case for entry in STORED.values()] == cases()


def test_golden_files_keep_every_bit(tmp_path: Path) -> None:
    """Written and read again, float32 for float32: the largest, the smallest, awkward ones, and a missing number."""
    stored = STORED["dapo-token-kl-delta_4.0"]
    gradient = torch.tensor([[3.4028235e38, 1e-45, 0.1], [-1 / 3, 16777216.0, 1e-7]])
    odd = replace(stored.outcome, loss=replace(stored.outcome.loss, gradient=gradient))
    write_golden(tmp_path / "grpo.json", {}, [replace(stored, outcome=odd)])
    (back,) = read_golden(tmp_path / "grpo.json")
    assert torch.equal(back.outcome.loss.gradient, gradient)
    assert isinstance(stored.inputs, Online)
    assert isinstance(back.inputs, Online)
    before, after = stored.inputs.rollout.sampler_logp, back.inputs.rollout.sampler_logp
    assert before is not None
    assert after is not None
    assert int(after.isnan().sum()) == 1
    assert torch.equal(before.nan_to_num(), after.nan_to_num())


def largest_change(one: str, other: str) -> float:
    """How far TRL's own results of two cases are apart."""
    first, second = STORED[one].outcome.loss, STORED[other].outcome.loss
    return max(abs(first.value - second.value), float((first.gradient - second.gradient).abs().max()))


def pairs_that_must_differ() -> list[tuple[str, str]]:
    """Cases that differ in one argument."""
    pairs: list[tuple[str, str]] = []
    for loss_type in REDUCTIONS:
        for level in ("token", "sequence"):
            stem, tail = f"{loss_type}-{level}", "delta_None"
            pairs += pairwise(f"{stem}-{penalty}-{tail}" for penalty in ("no_kl", "kl", "kl_corrected"))
            if loss_type in CLIPPED:
                deltas = [f"{stem}-no_kl-delta_{delta}" for delta in (None, 4.0, 1.1)]
                pairs += [(deltas[0], deltas[1]), (deltas[0], deltas[2]), (deltas[1], deltas[2])]
            modes = ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
            corrected = [f"{stem}-{mode}-low_{low}" for mode in modes for low in (None, 0.8)]
            pairs += pairwise(corrected)
        scalings = ("group", "batch", "none")
        pairs += pairwise(f"{loss_type}-{scale}-keep_truncated" for scale in scalings)
        pairs += [
            (f"{loss_type}-{one}-keep_truncated", f"{loss_type}-{other}-mask_truncated")
            for one, other in product(scalings, scalings)
        ]
        pairs.append((f"{loss_type}-token-no_kl-delta_None", f"{loss_type}-sequence-no_kl-delta_None"))
    return pairs


def test_the_inputs_tell_the_settings_apart() -> None:
    """Each argument moves TRL's result by far more than the tolerance: agreement says that ours read it too."""
    alike = [(one, other) for one, other in pairs_that_must_differ() if largest_change(one, other) < CLEAR]
    assert alike == []


def test_another_objective_is_told_apart() -> None:
    """Every loss type's stored result, against the composition of every other one."""
    kept = {name: STORED[f"{name}-token-kl-delta_None"] for name in REDUCTIONS}
    alike: list[tuple[str, str]] = []
    for name, stored in kept.items():
        for other, wrong in kept.items():
            found = differences(own_outcome(stored.inputs, wrong.case.settings), stored.outcome)
            if found["gradient"] <= CLEAR:
                alike.append((name, other))
    # One microbatch: its token mean is the step's.
    assert sorted(alike) == sorted([(name, name) for name in REDUCTIONS] + [("bnpo", "dapo"), ("dapo", "bnpo")])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (GrpoSettings(loss_type="cispo"), "cap on the ratio is absolute"),
        (GrpoSettings(delta=0.9), "no counterpart"),
        (GrpoSettings(loss_type="vespo"), "loss_type='vespo' has no counterpart"),
        (GrpoSettings(scale_rewards="mean"), "scale_rewards='mean' has no counterpart"),
        (GrpoSettings(multi_objective_aggregation="normalize_then_sum"), "only sum_then_normalize"),
        (GrpoSettings(top_entropy_quantile=0.2, entropy_coef=0.1), "bonus is over the kept tokens"),
        (
            GrpoSettings(vllm_importance_sampling_mode="token_mask", vllm_importance_sampling_clip_max=None),
            "have an upper bound",
        ),
        (RlooSettings(normalize_advantages=True), "no counterpart"),
        (DpoSettings(loss_type=("hinge",)), "those with a counterpart are sigmoid, sigmoid_norm, ipo"),
        (DpoSettings(loss_type=("sigmoid", "sft"), loss_weights=(0.5, 1.0)), "at weight 1"),
    ],
)
def test_what_has_no_counterpart_is_refused(settings: GrpoSettings | RlooSettings | DpoSettings, said: str) -> None:
    """Never replaced by something close."""
    with pytest.raises(ValueError, match=said):
        _ = objective_for(settings)
