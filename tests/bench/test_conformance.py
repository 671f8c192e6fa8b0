"""The conformance kit: its oracle is right by hand, by differences and by stored numbers; our presets pass it."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch

from bench import catalog
from bench.conformance import checks_loss, oracle_credit
from bench.conformance.adapter import Implementation, evaluate, resolve_claims
from bench.conformance.checks import CHECKS, check
from bench.conformance.examples import as_pairs, as_rows, example, golden, masked_example
from bench.conformance.oracle import Pair, Rows, loss, pair_loss
from bench.conformance.ours import ours
from bench.conformance.step import PairStep, Step
from bench.conformance.table import plain, to_json

PRESETS = catalog.names("algorithms")
STORED = json.loads((Path(__file__).parent / "golden" / "conformance.json").read_text(encoding="utf-8"))
NAN = math.nan
CLIP = {"kind": "clip", "low": 0.2, "high": 0.28}
TOKEN_RATIO, TOKEN_MEAN = {"kind": "token_ratio"}, {"kind": "token_mean"}


@pytest.fixture(autouse=True)
def _without_shape_checks() -> Iterator[None]:
    """Shapes are checked in the objectives' own tests; here they would take two thirds of the time."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def claims_of(**axes: Any) -> dict[str, Any]:
    return {"ratio": TOKEN_RATIO, "surrogate": CLIP, "reduction": TOKEN_MEAN, **axes}


def rows_of(logp: list[list[float]], lengths: list[int], **given: Any) -> Rows:
    zeros = [[0.0] * len(row) for row in logp]
    plain: dict[str, Any] = {
        "old_logp": logp,
        "ref_logp": logp,
        "advantage": zeros,
        "mask": [[t < length for t in range(len(logp[0]))] for length in lengths],
        "group": [0] * len(logp),
        "microbatch": [0] * len(logp),
        "budget": 10,
    }
    return Rows(logp=logp, **plain | given)


def test_the_reductions_by_hand() -> None:
    """Four tokens of loss 1 and one token of loss 6: token mean 10/5, mean of means (1 + 6)/2, constant 10/(2 x 10)."""
    rows = rows_of([[-1.0] * 4, [-6.0] * 4], [4, 1])
    expected = {
        "token_mean": 2.0, "sequence_mean": 3.5, "constant_length": 0.5, "sequence_sum": 5.0, "group_token_mean": 2.0
    }  # fmt: skip
    for kind, value in expected.items():
        found, gradient = loss({"reduction": {"kind": kind}}, rows)
        assert found == pytest.approx(value, abs=1e-12), kind
        assert gradient[1][1:] == [0, 0, 0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [(1.3, 1, -1.28, 0), (1.3, -1, 1.3, 1.3), (0.7, 1, -0.7, -0.7), (0.7, -1, 0.8, 0)],
)
def test_the_four_corners_of_the_clip_by_hand(ratio: float, advantage: float, value: float, slope: float) -> None:
    rows = rows_of([[math.log(ratio)]], [1], old_logp=[[0.0]], advantage=[[float(advantage)]])
    found, gradient = loss(claims_of(), rows)
    assert found == pytest.approx(value, abs=1e-12)
    assert gradient[0][0] == pytest.approx(slope, abs=1e-12)


def test_dpo_by_hand() -> None:
    pair = Pair(chosen=-10, rejected=-12, ref_chosen=-11, ref_rejected=-11, chosen_length=4, rejected_length=4)
    claims = {"loss_function": {"kind": "sigmoid", "beta": 0.1}, "likelihood": {"kind": "no_likelihood"}}
    value, ((chosen, rejected),) = pair_loss(claims, [pair])
    assert value == pytest.approx(0.598139, abs=1e-6)
    assert chosen == pytest.approx(-0.1 / (1 + math.exp(0.2)), abs=1e-12)
    assert rejected == -chosen


def test_advantages_by_hand() -> None:
    exact = {"kind": "group_standardised", "ddof": 1, "epsilon": 0}
    half = math.sqrt(3) / 2
    assert oracle_credit.advantages(exact, [1, 1, 0, 0, 10, 10, 0, 0], [0] * 4 + [1] * 4) == pytest.approx(
        [half, half, -half, -half] * 2
    )
    assert oracle_credit.advantages(exact, [1, NAN, 0, 0], [0] * 4) == pytest.approx(
        [2 / math.sqrt(3), 0, -1 / math.sqrt(3), -1 / math.sqrt(3)]
    )
    assert oracle_credit.advantages(exact, [NAN, NAN, NAN, 1], [0] * 4) == [0, 0, 0, 0]
    assert oracle_credit.advantages(exact, [0.3] * 8, [0] * 8) == [0] * 8
    assert oracle_credit.advantages({"kind": "leave_one_out"}, [1, 0, 0, 0], [0] * 4) == pytest.approx(
        [1] + [-1 / 3] * 3
    )


def test_best_of_k_by_hand() -> None:
    """One correct of four, k = 2: three of six subsets hold it; a wrong one is in three subsets, one with the best."""
    found = oracle_credit.advantages({"kind": "pass_at_k", "k": 2}, [1, 0, 0, 0], [0] * 4)
    assert found == pytest.approx([1.0] + [(1 / 3 - 0.5) / 0.5] * 3)


def test_gae_by_hand() -> None:
    assert oracle_credit.gae([0, 1], [0, 0], 1.0, 0.95) == pytest.approx([0.95, 1.0])
    assert oracle_credit.gae([0, 0], [0.2, 0.4], 1.0, 1.0, next_value=0.5) == pytest.approx([0.3, 0.1])
    assert oracle_credit.gae([0, 0], [0.2, 0.4], 1.0, 1.0) == pytest.approx([-0.2, -0.4])


def test_the_length_penalty_by_hand() -> None:
    found = [oracle_credit.overlong(length, 100, 20, 1.0) for length in (80, 85, 90, 100, 101)]
    assert found == [0, -0.25, -0.5, -1, -1]


def test_the_divergences_slopes_by_differences() -> None:
    """KL(pi || reference) is what k2 follows on-policy, KL(reference || pi) what k3 does."""
    policy, reference, step = [0.5, 0.3, 0.2], [0.2, 0.5, 0.3], 1e-6

    def softmax(logits: list[float]) -> list[float]:
        total = sum(map(math.exp, logits))
        return [math.exp(x) / total for x in logits]

    def divergence(p: list[float], q: list[float]) -> float:
        return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))

    for estimator, of in (
        ("k2", lambda p: divergence(p, reference)),
        ("k3", lambda p: divergence(reference, p)),
        ("k1", lambda p: 0.0),
    ):
        penalty = {"kind": "loss_kl", "coefficient": 1.0, "estimator": estimator, "weight": "none"}
        found = oracle_credit.kl_slope(penalty, policy, reference)
        logits = list(map(math.log, policy))
        for i in range(3):
            up, down = (softmax([x + sign * step * (i == j) for j, x in enumerate(logits)]) for sign in (1, -1))
            assert found is not None
            assert found[i] == pytest.approx((of(up) - of(down)) / (2 * step), abs=1e-8)


def test_a_kl_term_weighted_by_a_mean_ratio_follows_no_divergence() -> None:
    """With one token GSPO's ratio is the token's; with two the weighted estimate is biased, so nothing is expected."""
    weighted = {"kind": "loss_kl", "coefficient": 0.1, "estimator": "k3", "weight": "ratio"}
    gspo = ours("gspo")
    for ratio, status in (("sequence_ratio", "not applicable"), ("sequence_product_ratio", "deviates")):
        claims = {**gspo.claims, "penalty": weighted, "ratio": {"kind": ratio}}
        found = checks_loss.kl_gradient(replace(gspo, claims=claims))  # whose own loss has no KL term
        assert found.status == status


EVERY_KIND = [
    claims_of(),
    claims_of(surrogate={"kind": "dual_clip", "low": 0.2, "high": 0.2, "cap": 3.0}),
    claims_of(surrogate={"kind": "cispo", "low": 0.2, "high": 4.0}),
    claims_of(surrogate={"kind": "cispo_masked", "low": None, "high": 4.0, "mask_low": 0.2, "mask_high": 0.2}),
    claims_of(surrogate={"kind": "sapo", "temperature_positive": 1.0, "temperature_negative": 1.05}),
    claims_of(surrogate={"kind": "unclipped"}),
    claims_of(surrogate={"kind": "reinforce"}, ratio={"kind": "no_ratio"}),
    *(
        claims_of(surrogate={"kind": "clip", "low": 0.05, "high": 0.05}, ratio={"kind": ratio}, reduction={"kind": own})
        for ratio in ("sequence_ratio", "sequence_token_ratio", "sequence_product_ratio")
        for own in ("sequence_mean", "sequence_sum")
    ),
    *(
        claims_of(penalty={"kind": "loss_kl", "coefficient": 0.3, "estimator": estimator, "weight": weight})
        for estimator in ("k1", "k2", "k3")
        for weight in ("none", "ratio", "detached_ratio")
    ),
    claims_of(reduction={"kind": "group_token_mean"}),
    claims_of(reduction={"kind": "microbatch_token_mean"}),
    claims_of(reduction={"kind": "constant_length", "count_masked": True}),
]


@pytest.mark.parametrize("claims", EVERY_KIND, ids=str)
def test_the_oracles_gradient_is_the_difference_of_its_values(claims: dict[str, Any]) -> None:
    """Central differences; what stands behind a stop-gradient stays where it is."""
    step = masked_example({"kind": "policy_gradient"}).split([[0, 1, 2], [3, 4, 5, 6, 7]])
    rows = as_rows(step)
    frozen, size = rows.logp, 1e-6
    _, gradient = loss(claims, rows)
    for i, t in ((0, 0), (3, 2), (4, 1), (7, 3), (7, 7), (6, 0), (2, 0)):
        moved = [_moved(rows, i, t, sign * size) for sign in (1, -1)]
        up, down = (loss(claims, one, frozen)[0] for one in moved)
        assert gradient[i][t] == pytest.approx((up - down) / (2 * size), abs=1e-8)


def _moved(rows: Rows, i: int, t: int, by: float) -> Rows:
    logp = [[x + by * ((i, t) == (j, u)) for u, x in enumerate(row)] for j, row in enumerate(rows.logp)]
    return Rows(**{**vars(rows), "logp": logp})


@pytest.mark.parametrize("name", ["dpo", "dpo_norm", "dpo_nll", "ipo"])
def test_the_oracles_slopes_of_pairs_are_differences(name: str) -> None:
    claims, _ = resolve_claims(name)
    step = example(claims)
    assert isinstance(step, PairStep)
    pairs = as_pairs(step)
    _, slopes = pair_loss(claims, pairs)
    for side, place in (("chosen", 0), ("rejected", 1)):
        for i, pair in enumerate(pairs):
            own = getattr(pair, side)
            up, down = (
                pair_loss(claims, [*pairs[:i], Pair(**{**vars(pair), side: own + by}), *pairs[i + 1 :]])[0]
                for by in (1e-5, -1e-5)
            )
            assert slopes[i][place] == pytest.approx((up - down) / 2e-5, abs=1e-7)


@pytest.mark.parametrize("name", PRESETS)
def test_the_oracle_and_the_presets_give_the_stored_numbers(name: str) -> None:
    """Stored once: an error made in both the oracle and the objective would still be a change."""
    claims, _ = resolve_claims(name)
    step, stored = example(claims), STORED[name]
    for found in (golden(claims, step), evaluate(ours(name), step)):
        assert found.value == pytest.approx(stored["value"], abs=1e-10)
        assert torch.allclose(found.gradient, torch.tensor(stored["gradient"], dtype=torch.float64), atol=1e-10, rtol=0)
    if "advantages" in stored:
        reward, group = [1, 0, 0.35, 0.35, 0.2, 1, 0.35, 0.35, 0.35, 0.35, 0.35, 0.0], [0] * 6 + [1] * 6
        advantages = ours(name).advantages
        assert advantages is not None
        own = advantages(torch.tensor(reward, dtype=torch.float64), torch.tensor(group)).tolist()
        assert own == pytest.approx(stored["advantages"], abs=1e-9)
        found = oracle_credit.advantages(claims["advantage"], reward, group)
        assert found == pytest.approx(stored["advantages"], abs=1e-10)


def test_the_examples_ask_something_of_every_preset() -> None:
    """Rows that move and, where there is a bound, tokens that it stops, in the whole step and in the masked one."""
    for name in PRESETS:
        claims, _ = resolve_claims(name)
        steps = [example(claims)] if claims["kind"] == "preference" else [example(claims), masked_example(claims)]
        for step in steps:
            gradient = golden(claims, step).gradient
            assert int((gradient != 0).any(dim=1).sum()) >= 3, name
            if isinstance(step, Step) and claims.get("surrogate", {}).get("kind") in ("clip", "dual_clip"):
                penalty = claims["penalty"]["kind"] == "loss_kl"
                idle = (gradient == 0) & step.mask & (step.advantage != 0)
                assert penalty or int(idle.sum()) >= 3, name


@pytest.mark.parametrize("name", ["grpo", "gspo", "ppo", "rloo", "dpo_norm"])
def test_a_loss_in_float32_passes(name: str) -> None:
    def single(values: torch.Tensor) -> torch.Tensor:
        return values.float() if values.is_floating_point() else values

    own = ours(name)
    column = check(replace(own, loss=lambda step: own.loss(step.map(single))))
    assert column.deviations == []


@pytest.mark.slow
def test_every_preset_is_told_from_every_other() -> None:
    """Under another preset's claim something deviates, but for pairs that differ only in what the kit is not given:
    where completions come from, the critic, and the KL term in the reward."""
    alike: set[frozenset[str]] = set()
    presets = {name: ours(name) for name in PRESETS}
    for own in presets.values():
        for other in presets.values():
            same_kind_of_step = (own.family == "preference") == (other.family == "preference")
            if own is not other and same_kind_of_step and _none_deviates(replace(own, claims=other.claims)):
                alike.add(frozenset({own.name, other.name}))
    assert alike == {frozenset({"sft", "rft"}), frozenset({"ppo", "reinforce_pp"})}


def _none_deviates(implementation: Implementation) -> bool:
    return not any(one.run(implementation).status == "deviates" for one in CHECKS)


def test_every_preset_passes_and_the_stored_results_are_todays(root: Path) -> None:
    columns = [check(ours(name)) for name in PRESETS]
    assert [(column.implementation.name, one.name) for column in columns for one, _ in column.deviations] == []
    stored = (root / "results/conformance/ours.json").read_text(encoding="utf-8")
    assert stored == to_json(plain(columns)), "run: bench conformance --json results/conformance/ours.json; make docs"
