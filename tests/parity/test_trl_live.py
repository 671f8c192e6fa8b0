"""The installed TRL agrees with our compositions and with the stored values, and deviates where we say so."""

import dataclasses
import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench.conformance.golden import FAMILIES, read_golden
from bench.conformance.trl_compare import Online, differences, example_inputs, own_outcome, trl_outcome
from bench.conformance.trl_deviations import measure
from bench.conformance.trl_dpo import DpoSettings
from bench.conformance.trl_grid import Case, cases
from bench.conformance.trl_grpo import GrpoSettings, grpo_advantages
from bench.conformance.trl_rloo import RlooSettings
from bench.conformance.trl_stub import TRL_VERSION, trainer_module

pytestmark = [pytest.mark.reference, pytest.mark.usefixtures("trl")]
FOLDER = Path(__file__).parent / "golden"
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def trl() -> None:
    """Skips where TRL is missing; another version than the pinned one is an error, said by the harness."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("trl", reason=f"needs trl=={TRL_VERSION}")


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_equals_trl(case: Case) -> None:
    inputs = example_inputs(case.inputs, case.settings)
    own = own_outcome(inputs, case.settings, case.num_microbatches)
    found = differences(own, trl_outcome(inputs, case.settings, case.num_microbatches))
    assert {name: size for name, size in found.items() if name in case.compares and not size <= TOLERANCE} == {}


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Both sides compute in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.usefixtures("double_precision")
def test_equals_trl_to_the_last_bits(seed: int) -> None:
    """What is left in float32 is rounding: in float64 every case agrees to 1e-12, on other tensors too."""
    wrong: dict[str, dict[str, float]] = {}
    for case in cases():
        inputs = example_inputs(case.inputs, case.settings, seed)
        own = own_outcome(inputs, case.settings, case.num_microbatches)
        found = differences(own, trl_outcome(inputs, case.settings, case.num_microbatches))
        large = {name: size for name, size in found.items() if name in case.compares and not size <= 1e-12}
        wrong |= {case.name: large} if large else {}
    assert wrong == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_stored_values_are_trls(family: str) -> None:
    """On the stored tensors, whatever the random numbers of this torch are."""
    for stored in read_golden(FOLDER / f"{family}.json"):
        case = stored.case
        found = differences(trl_outcome(stored.inputs, case.settings, case.num_microbatches), stored.outcome)
        assert max(found.values()) <= TOLERANCE, case.name


@pytest.mark.parametrize(
    ("module", "config", "settings"),
    [
        ("grpo_config", "GRPOConfig", GrpoSettings()),
        ("rloo_config", "RLOOConfig", RlooSettings()),
        ("dpo_config", "DPOConfig", DpoSettings()),
    ],
)
def test_defaults_are_trls(module: str, config: str, settings: GrpoSettings | RlooSettings | DpoSettings) -> None:
    """Names and defaults; the mode of the mismatch's correction excepted, whose None says that vLLM is off."""
    theirs = {field.name: field for field in dataclasses.fields(getattr(trainer_module(module), config))}
    for field in dataclasses.fields(settings):
        assert field.name in theirs
        if field.name != "vllm_importance_sampling_mode":
            their = theirs[field.name]
            plain = their.default_factory is dataclasses.MISSING
            default = their.default if plain else their.default_factory()  # pyright: ignore[reportCallIssue]
            own = getattr(settings, field.name)
            assert (list(own) if isinstance(own, tuple) else own) == default, field.name


@pytest.mark.parametrize(("trainer", "scaled"), [("grpo", True), ("rloo", False), ("dpo", False)])
def test_who_divides_by_the_number_of_microbatches(trainer: str, scaled: bool) -> None:
    """GRPO's loss does so itself; RLOO's and DPO's is divided by the Trainer, and here by the harness."""
    classes = vars(trainer_module(f"{trainer}_trainer"))
    assert classes[f"{trainer.upper()}Trainer"].loss_is_scaled_for_ga is scaled


@pytest.mark.parametrize("settings", [GrpoSettings(), GrpoSettings(scale_rewards="none"), RlooSettings()])
def test_unscorable_completions_have_advantage_0_in_trl(settings: GrpoSettings | RlooSettings) -> None:
    """Rows 1 and 3; row 4 lacks one of two rewards and keeps the other."""
    inputs = example_inputs("unscorable", settings)
    assert isinstance(inputs, Online)
    advantages = trl_outcome(inputs, settings).advantages
    assert advantages is not None
    assert (advantages == 0).tolist() == [False, True, False, True, False, False]
    assert math.isfinite(float(advantages.abs().sum()))


def test_weights_of_reward_functions() -> None:
    """Weighted sums, by TRL's code and by hand."""
    inputs = example_inputs("plain", GrpoSettings())
    assert isinstance(inputs, Online)
    settings, weights = GrpoSettings(scale_rewards="none"), torch.tensor([1.0, -0.5])
    reward = (inputs.rollout.rewards * weights).sum(dim=1).view(-1, 3)
    by_hand = (reward - reward.mean(dim=1, keepdim=True)).flatten()
    torch.testing.assert_close(grpo_advantages(inputs.rollout, settings, weights).advantages, by_hand)


def test_every_deviation_is_one() -> None:
    """What the list says still holds for the installed version: the two sides' numbers differ."""
    alike = [found.name for found in measure() if math.isclose(found.trl, found.own, rel_tol=1e-3, abs_tol=1e-5)]
    assert alike == []
