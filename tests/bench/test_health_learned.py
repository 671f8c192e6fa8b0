"""What a critic explains, and what became of pairs, on series in which a mean of the records would say the opposite."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.axes.value import explained_variance
from bench.health import Finding, health_of

VALIDATED = {"validation": {"every": 10, "problems": 100, "samples": 4}}


def answers(lines: list[dict[str, Any]], run: Mapping[str, Any] | None = None) -> dict[str, Finding]:
    return {found.name: found for found in health_of(lines, run)}


def short(finding: Finding) -> tuple[str, bool]:
    return finding.answer, finding.look


def critic(share: float, spread: float, length: int = 32) -> list[dict[str, Any]]:
    own = {"grad_norm": 1.0, "value/explained_variance": share, "returns/std": spread}
    return [{"update": i + 1, **own} for i in range(length)]


def advantage(**knobs: Any) -> dict[str, Any]:
    return {"objective": {"advantage": {"kind": "gae", "lam": 1.0, "lam_returns": None, **knobs}}}


def test_a_critic_is_judged_without_its_warm_up() -> None:
    lines = critic(0.004, 0.5)
    found = answers(lines)["critic"]
    assert short(found) == ("no", True)
    assert found.numbers == "explains 0.004, min 0.05"
    assert short(answers(critic(0.3, 0.5))["critic"]) == ("yes", False)
    assert "worse than a constant" in answers(critic(-2.0, 0.5))["critic"].text
    for line in lines:
        del line["grad_norm"]
    assert answers(lines)["critic"].answer == "cannot be told"


def test_a_critic_is_not_judged_by_rollouts_whose_returns_are_all_equal() -> None:
    """One rollout in eight is all right: its share is that of a residual to nothing, some -250."""
    rng = torch.Generator().manual_seed(0)
    lines = critic(0, 0)
    for i, line in enumerate(lines):
        returns = torch.ones(256) if i % 8 == 0 else (torch.rand(256, generator=rng) < 0.5).double()
        value = returns + (0.05 if i % 8 == 0 else 0.25) * torch.randn(256, generator=rng).double()
        line |= {"value/explained_variance": explained_variance(value, returns), "returns/std": float(returns.std())}
    assert min(line["value/explained_variance"] for line in lines) < -200
    found = answers(lines)["critic"]
    assert short(found) == ("yes", False)
    assert found.value == pytest.approx(0.75, abs=0.02)
    for line in lines:
        del line["returns/std"]
    assert answers(lines)["critic"].numbers == "returns/std is not recorded"


def test_returns_that_are_all_equal_leave_a_critic_nothing_to_explain() -> None:
    zeros = torch.zeros(9)
    assert explained_variance(zeros, zeros) == 1
    found = answers(critic(1.0, 0.0))["critic"]
    assert (short(found), found.numbers) == (("cannot be told", False), "the returns hardly differ")


@pytest.mark.parametrize("knobs", [{"lam": 0.95}, {"lam_returns": 0.5}, {"truncation_bootstrap": True}])
def test_a_critic_is_not_measured_against_its_own_values(knobs: dict[str, Any]) -> None:
    lines = critic(0.2, 0.5)
    assert answers(lines, advantage())["critic"].answer == "yes"
    assert answers(lines, advantage(lam=0.95, lam_returns=1.0))["critic"].answer == "yes"
    found = answers(lines, advantage(**knobs))["critic"]
    assert found.answer == "cannot be told"
    assert found.numbers.startswith("targets contain V (")
    for line in lines:
        line |= {"value/explained_variance_mc": -0.3, "returns/mc_std": 0.5}
    true = answers(lines, advantage(**knobs))["critic"]
    assert (true.answer, true.value, true.metric) == (
        "no",
        pytest.approx(-0.3, abs=1e-3),
        "value/explained_variance_mc",
    )


def pairs(length: int, chosen: float, accuracy: float) -> list[dict[str, Any]]:
    """A run on pairs: what was sampled before it stands in its first record."""
    rng = np.random.default_rng(1)
    lines = [
        {
            "update": i + 1,
            "grad_norm": 1.0,
            "dpo/accuracy": accuracy,
            "dpo/chosen_reward": chosen * i / length + 0.01 * rng.normal(),
        }
        for i in range(length)
    ]
    lines[0] |= {"reward/mean": 0.3, "reward/accuracy": 0.3}
    return lines


def test_a_run_on_pairs_is_asked_about_pairs() -> None:
    found = answers(pairs(40, -0.5, 0.9))
    assert (short(found["pairs"]), short(found["chosen"])) == (("yes", False), ("yes", True))
    assert found["reward"].numbers == found["verdict"].numbers == "sampled once, before training"
    assert found["entropy"].numbers == found["kl"].numbers == "not of this objective"
    kept = answers(pairs(40, 0.5, 0.55))
    assert (short(kept["pairs"]), short(kept["chosen"])) == (("no", True), ("no", False))
    validated: list[dict[str, Any]] = [{"update": 0, "validation/pass@1": 0.2}, *pairs(40, 0.5, 0.9)]
    validated[-1]["validation/pass@1"] = 0.4
    assert short(answers(validated, VALIDATED)["reward"]) == ("yes", False)


def rounds(number: int, updates: int, step: float, accuracy: float = 0.9) -> list[dict[str, Any]]:
    """Iterative rounds: the chosen side moves by `step` an update, and each round counts from 0 again."""
    rng = np.random.default_rng(number)
    lines: list[dict[str, Any]] = []
    for i in range(number * updates):
        at = i % updates
        moved = at * step + 0.05 * rng.normal() if at else 0.0
        line = {"update": i + 1, "dpo/accuracy": accuracy if at else 0.0, "dpo/chosen_reward": moved}
        lines.append({**line, **({} if at else {"dpo/round": i // updates + 1})})
    return lines


@pytest.mark.parametrize(("number", "updates"), [(8, 2), (8, 8), (2, 20)])
def test_rounds_that_lose_ground_each_are_added_up(number: int, updates: int) -> None:
    lost = answers(rounds(number, updates, -2 / updates))["chosen"]
    assert short(lost) == ("yes", True)
    assert f"summed over {number} rounds" in lost.text
    assert lost.value is not None
    assert lost.value < -0.6 * number
    assert short(answers(rounds(number, updates, 2 / updates))["chosen"]) == ("no", False)


def test_noise_at_the_ends_of_rounds_is_seldom_called_a_loss() -> None:
    """A sum of noise wanders; held against the noise of its stretches alone, one in four would be called a loss."""
    rng, called = np.random.default_rng(0), 0
    for _ in range(200):
        lines = rounds(8, 8, 0.0)
        for line in lines:
            line["dpo/chosen_reward"] = 0.0 if "dpo/round" in line else rng.normal()
        called += answers(lines)["chosen"].answer == "yes"
    assert called <= 20


def test_pairs_are_seen_after_a_rounds_first_step() -> None:
    """Before it policy and reference are the same: no pair is ordered, whatever the round learns."""
    found = answers(rounds(8, 2, -0.1))["pairs"]
    assert (short(found), found.value) == (("yes", False), pytest.approx(0.9))
    never = answers(rounds(16, 1, -0.1))
    for name in ("pairs", "chosen"):
        assert (never[name].answer, never[name].numbers) == (
            "cannot be told",
            "one update a round, seen before its step",
        )
