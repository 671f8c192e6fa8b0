"""Baseline quality against exact values: the truth, its standard error, and what is said of a baseline on top of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch

from algorithms.axes.batch import Rollout
from algorithms.axes.penalty import RewardKL, SequenceRewardKL
from algorithms.axes.policy_gradient import PolicyGradient
from bench.baseline_quality.continuations import Continuer, Prefix, batches, joined
from bench.baseline_quality.measure import measured, positions
from bench.baseline_quality.returns import discount
from bench.baseline_quality.truth import true_values
from bench.casting import make_cast
from bench.config import Run
from bench.config_quality import BaselineQuality
from bench.generate import Completion, sample
from bench.instruments import Instruments
from bench.learner import Cast, microbatches
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.models import create_tiny
from bench.rewards import Rewarder
from bench.rollout import Group, Sampler, sequences_of
from bench.scoring import Scorer
from bench.statistics.baseline_quality import advantage_quality, value_quality
from tasks.parts.problem import Grade, Problem, ProceduralTask, Split

MakeRun = Callable[..., Run]
Line = dict[str, Any]
Said = tuple[int, ...]
BATCH = {"optimizer.microbatch_sequences": 512}
LENGTH = 6


class Letters(ProceduralTask, frozen=True):
    """The prompt is a word of six a's and b's; a completion is right if it says an odd number of a's, cut or not.

    Five symbols and a few tokens: every completion can be enumerated.
    """

    version: ClassVar[int] = 1
    alphabet: ClassVar[str] = "ab"
    name: Literal["letters"] = "letters"

    def num_problems(self, split: Split) -> int | None:
        return None

    def generate(self, split: Split, index: int) -> Problem:
        word = f"{index % 2**LENGTH:0{LENGTH}b}".replace("0", "a").replace("1", "b")
        return Problem(id=f"letters/{split}/{index}", prompt=word, gold="")

    def grade(self, problem: Problem, completion: str, *, truncated: bool = False) -> Grade:
        right = completion.count("a") % 2 == 1
        return Grade(correct=right, answer_key=None, method="end", parsed=True, truncated=truncated)

    def format_score(self, problem: Problem, completion: str) -> float:
        return 0.0


@dataclass(frozen=True)
class Exact:
    """The true values of one prompt's states, by dynamic programming over the tree of its completions."""

    run: Run
    objective: PolicyGradient
    cast: Cast
    logps: dict[Said, list[tuple[float, float]]]
    """Of each next token, by the policy and by the reference, after the tokens said so far."""
    values: dict[Said, float] = field(default_factory=dict[Said, float])
    """V by the tokens said so far."""
    after: dict[Said, float] = field(default_factory=dict[Said, float])
    """Q by the tokens said, the last of which is the action."""

    def value(self, said: Said = (), charged: float = 0.0) -> float:
        """V of a state; `charged` is the penalty so far of an objective that charges it per completion."""
        penalty, gamma = self.objective.penalty, discount(self.objective)
        beta = penalty.coefficient if isinstance(penalty, RewardKL | SequenceRewardKL) else 0.0
        self.values[said] = 0.0
        for token, (logp, ref_logp) in enumerate(self.logps[said]):
            longer, cost = (*said, token), beta * (logp - ref_logp)
            total = charged + cost if penalty.per_completion else 0.0
            ended = token in self.cast.policy.end_ids
            if ended or len(longer) == self.run.rollout.max_completion_tokens:
                q = self._reward(longer, ended) - total
            else:
                q = gamma * self.value(longer, total)
            self.after[longer] = q if penalty.per_completion else q - cost
            self.values[said] += float(np.exp(logp)) * self.after[longer]
        return self.values[said]

    def _reward(self, said: Said, ended: bool) -> float:
        right = self.cast.policy.decode(said).count("a") % 2 == 1
        return shaped(self.objective, right, len(said), ended, self.run.rollout.max_completion_tokens)


@cache
def shaped(objective: PolicyGradient, right: bool, length: int, ended: bool, budget: int) -> float:
    """1 for a right completion, with the objective's shaping of its length and its end."""
    one = Rollout(
        reward=torch.tensor([float(right)], dtype=torch.float64),
        group=torch.zeros(1, dtype=torch.int64),
        mask=torch.ones((1, length), dtype=torch.bool),
        terminated=torch.tensor([ended]),
        old_logp=torch.zeros((1, length)),
        ref_logp=None,
        value=None,
        completion_budget=budget,
    )
    return float(objective.shaping(one))


@torch.no_grad()
def distributions(cast: Cast, prompt: Said, horizon: int) -> dict[Said, list[tuple[float, float]]]:
    """Log-probabilities of every token after every state of a prompt."""
    found: dict[Said, list[tuple[float, float]]] = {}
    for length in range(horizon):
        states = list(product(range(5), repeat=length))
        ids = torch.tensor([prompt + state for state in states])
        both = [
            model.network(input_ids=ids).logits[:, -1].double().log_softmax(dim=-1).tolist()
            for model in (cast.policy, cast.reference or cast.policy)
        ]
        found |= {
            state: list(zip(*own, strict=True)) for state, own in zip(states, zip(*both, strict=True), strict=True)
        }
    return found


@dataclass(frozen=True)
class Scene:
    """A rollout of letters, and the true values of its states by problem."""

    run: Run
    cast: Cast
    sampler: Sampler
    groups: list[Group]
    rollout: Rollout
    exact: dict[str, Exact]

    @property
    def objective(self) -> PolicyGradient:
        assert isinstance(self.run.objective, PolicyGradient)
        return self.run.objective

    def lines(self, config: BaselineQuality, rollout: Rollout | None = None, key: int = 5) -> list[Line]:
        rollout = rollout or self.rollout
        continuer = Continuer(self.run, self.objective, self.cast, self.sampler, Rewarder(self.run), key)
        return measured(config, continuer, self.groups, rollout, self.objective.credit(rollout))

    def valued(self, offset: float) -> Rollout:
        """The rollout as a critic that is off by `offset` everywhere sees it."""
        value = torch.zeros(self.rollout.mask.shape)
        members = [(group.problem.id, member) for group in self.groups for member in group.members]
        for row, (name, member) in enumerate(members):
            ids = member.completion.token_ids
            for t in range(len(ids)):
                value[row, t] = self.exact[name].values[ids[:t]] + offset
        return replace(self.rollout, value=value)

    def truths(self, line: Line) -> tuple[float, float]:
        """V of the state before the line's token, and Q of that token."""
        exact, t = self.exact[line["problem_id"]], line["position"]
        ids = self.groups[line["group"]].members[line["member"]].completion.token_ids
        return exact.values[ids[:t]], exact.after[ids[: t + 1]]


def scene(tiny_run: MakeRun, algorithm: str = "ppo", problems: int = 24, **knobs: Any) -> Scene:
    """A rollout of a random policy that is far from uniform, and from its reference."""
    run = tiny_run(algorithm, **{"rollout.max_completion_tokens": 3, "rollout.group_size": 8, **BATCH, **knobs})
    start = create_tiny(run.model, Letters.alphabet, 3)
    cast = make_cast(run, start)
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in start.network.parameters():
            parameter.copy_(0.24 * torch.randn(parameter.shape, generator=draws) + float(parameter.dim() == 1))
        if cast.reference is not None:
            for parameter, own in zip(cast.reference.network.parameters(), start.network.parameters(), strict=True):
                parameter.copy_(own + 0.08 * torch.randn(own.shape, generator=draws))
    instruments = Instruments(PhaseClock(), MemoryMeter("cpu"))
    sampler = Sampler(run, Letters(), sample, instruments)
    groups = sampler.groups(cast.policy, [Letters().generate("train", 5 * i) for i in range(problems)], 0)
    sequences = sequences_of(groups, cast.policy.pad_id)
    parts = microbatches(range(len(sequences)), sequences, run.optimizer, packed=True)
    objective = run.objective
    assert isinstance(objective, PolicyGradient)
    rollout = Scorer(run, objective, cast, instruments, False).rollout(groups, sequences, parts)
    horizon = run.rollout.max_completion_tokens
    exact = {
        group.problem.id: Exact(run, objective, cast, distributions(cast, group.prompt_ids, horizon))
        for group in groups
    }
    for one in exact.values():
        one.value()
    return Scene(run, cast, sampler, groups, rollout, exact)


CONFIG = BaselineQuality(problems=24, completions=2, positions=3, continuations=18, max_continuations=36)


def moments(known: Scene, lines: Sequence[Line]) -> tuple[np.ndarray, np.ndarray]:
    """Errors of the measured V and Q, and the variances stated for them, where continuations were needed."""
    errors, variances = [], []
    for line in lines:
        for name, truth in zip(("value", "q"), known.truths(line), strict=True):
            errors.append(line[f"{name}_true"] - truth)
            variances.append(line[f"{name}_variance"])
    return np.array(errors), np.array(variances)


def test_two_rounds_are_unbiased_where_stopping_is_not() -> None:
    """Rewards at a rate of 0.1: the mean is unbiased and its variance the one stated; stopping where the first 24 agree
    would say 0.095."""
    config = BaselineQuality(continuations=24, max_continuations=96, standard_error=0.04)
    stream, count = np.random.default_rng(0), 4000
    pool = (stream.random((count, 96)) < 0.1).astype(float)
    found = true_values(count, lambda blocks: [pool[i, 8 * b : 8 * b + 8] for i, b in blocks], config)
    means, used = np.array([one.mean for one in found]), np.array([one.count for one in found])
    assert {24, 96} < set(used) <= set(range(24, 97, 8))
    assert abs(means.mean() - 0.1) < 2.5 * means.std() / count**0.5
    assert np.mean([one.variance for one in found]) == pytest.approx(means.var(), rel=0.07)
    settled = pool[:, :24].std(axis=1) == 0
    assert np.where(settled, pool[:, :24].mean(axis=1), pool.mean(axis=1)).mean() < 0.096


def test_what_cannot_be_scored_is_left_out_of_a_true_value() -> None:
    def draw(blocks: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        return [np.array([1.0, np.nan, 0.0, 0.0] if i == 0 else [np.nan, np.nan, np.nan, 1.0]) for i, _ in blocks]

    found = true_values(2, draw, BaselineQuality(continuations=12, max_continuations=12))
    assert (found[0].mean, found[0].count) == (pytest.approx(1 / 3), 9)
    assert found[0].variance == pytest.approx((1 / 3) / 9)
    assert np.isnan(found[1].mean)


@pytest.mark.parametrize(
    ("algorithm", "knobs"),
    [
        ("ppo", {"objective.advantage.gamma": 0.9, "objective.penalty.coefficient": 0.2}),
        pytest.param("rloo", {"objective.penalty.coefficient": 0.2}, marks=pytest.mark.slow),
        pytest.param("dapo", {}, marks=pytest.mark.slow),
        pytest.param(
            "ppo", {"rollout.old_logp": "sampler", "objective.penalty.estimator": "k1"}, marks=pytest.mark.slow
        ),
    ],
)
def test_measured_truths_cover_the_exact_ones(algorithm: str, knobs: dict[str, Any], tiny_run: MakeRun) -> None:
    """Of the return that the objective defines: with a discount, a penalty per token or per completion, a shaping of
    the length. Errors have mean 0 and the variance that is stated; a last token's Q is its return."""
    known = scene(tiny_run, algorithm, **knobs)
    errors, variances = moments(known, lines := known.lines(CONFIG))
    last = np.array([[False, line["position"] + 1 == line["length"]] for line in lines]).ravel()
    np.testing.assert_allclose(errors[last], 0, atol=1e-4)
    open_ = variances > 0
    assert open_.sum() > 100
    assert abs(errors[open_].mean()) < 4 * (variances[open_].mean() / open_.sum()) ** 0.5
    assert (errors[~last] ** 2).mean() == pytest.approx(variances[~last].mean(), rel=0.3)


def test_what_is_said_of_baselines_and_advantages_is_what_is_true_of_them(tiny_run: MakeRun) -> None:
    """The exact critic has no error but noise, one that is 0.1 too high a bias and an error of 0.1. The errors of the
    group's baseline and advantage are those against the exact values, which no continuation was needed for."""
    known = scene(tiny_run)
    lines = known.lines(CONFIG, known.valued(0.0))
    high = [{**line, "critic_value": line["critic_value"] + 0.1} for line in lines]
    for own, bias in ((lines, 0.0), (high, 0.1)):
        found = value_quality(own, "critic")
        assert found["bias"].low < bias < found["bias"].high
        assert found["bias"].value == pytest.approx(bias, abs=0.015)
        assert found["error"].value == pytest.approx(bias, abs=0.02)
        assert found["error_with_noise"].value > 0.05
        assert found["correlation"].value > 0.97 > found["correlation_with_noise"].value
    values, q = np.array([known.truths(line) for line in lines]).T
    returns = np.array([line["return_to_go"] for line in lines])
    own = np.array([line["group_returns"][line["member"]] for line in lines])
    others = (np.array([sum(line["group_returns"]) for line in lines]) - own) / 7
    critic = np.array([line["critic_advantage"] for line in lines])
    for found, exact in (
        (value_quality(lines, "leave_one_out"), others - values),
        (advantage_quality(lines, "leave_one_out"), returns - others - (q - values)),
        (advantage_quality(lines, "critic"), critic - (q - values)),
    ):
        error = float(np.sqrt((exact**2).mean()))
        assert found["error"].low < error < found["error"].high
        assert found["error"].value == pytest.approx(error, rel=0.1)
    assert value_quality(lines, "critic")["error_of_mean"].value == pytest.approx(values.std(), rel=0.1)
    assert advantage_quality(lines, "critic")["correlation"].value == pytest.approx(
        np.corrcoef(critic, q - values)[0, 1], abs=0.08
    )


@pytest.mark.slow
def test_a_groups_mean_is_unbiased_at_the_first_token_and_its_error_falls_with_the_root_of_its_size(
    tiny_run: MakeRun,
) -> None:
    """The mean of g - 1 other rewards of 0 and 1 is off by sqrt(mean V (1 - V) / (g - 1)) before the first token."""
    known = scene(tiny_run, "grpo", problems=60, **{"rollout.group_size": 16})
    config = BaselineQuality(problems=60, completions=4, positions=1, continuations=24, max_continuations=240)
    lines = known.lines(config)
    values = np.array([one.values[()] for one in known.exact.values()])
    assert {line["position"] for line in lines} == {0}
    for size in (2, 4, 8, 16):
        found = value_quality(lines, "leave_one_out", size)
        assert found is not None
        assert found["bias"].low < 0 < found["bias"].high
        expected = float(np.sqrt((values * (1 - values)).mean() / (size - 1)))
        assert found["error"].low < expected < found["error"].high
        assert found["error"].value == pytest.approx(expected, rel=0.15)


def test_prefixes_of_nearly_one_length_share_a_batch_and_the_budget_cuts_each_where_it_should() -> None:
    group = Group(Letters().generate("train", 0), (3, 3, 4), ())
    prefixes = [Prefix(group, (3,) * n, (-1.0,) * n) for n in (9, 0, 2, 1, 1)]
    assert list(batches(prefixes, 8, budget=16, context=None)) == [[1, 3, 4], [2], [0]]
    assert list(batches(prefixes, 8, budget=16, context=19)) == [[1], [3, 4], [2], [0]]
    assert list(batches(prefixes, 2048, budget=16, context=None)) == [[1, 3], [4, 2], [0]]
    ended = Completion((4, 4, 1), terminated=True, logps=(-2.0, -3.0, -4.0))
    assert joined(prefixes[2], ended, 5) == Completion((3, 3, 4, 4, 1), True, (-1.0, -1.0, -2.0, -3.0, -4.0))
    assert joined(prefixes[2], ended, 4) == Completion((3, 3, 4, 4), False, (-1.0, -1.0, -2.0, -3.0))


def test_positions_are_the_first_token_and_drawn_ones_that_stand_for_all_others() -> None:
    stream = np.random.default_rng(0)
    assert positions(1, 4, stream) == positions(7, 1, stream) == {0: 1.0}
    assert positions(3, 5, stream) == {0: 1.0, 1: 1.0, 2: 1.0}
    drawn = [positions(9, 3, stream) for _ in range(400)]
    assert all(list(one) == sorted(one) and sum(one.values()) == pytest.approx(9) for one in drawn)
    counts = np.bincount([t for one in drawn for t in one], minlength=9)
    assert counts[0] == 400
    assert np.allclose(counts[1:], 100, atol=35)


def test_tokens_that_are_looked_at_do_not_look_ahead() -> None:
    """Each token ends a completion at a rate of .15; one is right that has at most six. The returns less the exact
    values are without bias, though a completion's length says how it came out."""
    stream = np.random.default_rng(0)

    def value(t: int) -> float:
        return 1 - 0.85 ** max(6 - t, 0)

    lines: list[dict[str, Any]] = []
    for problem, drawn in enumerate(stream.geometric(0.15, 4000)):
        length = min(int(drawn), 24)
        right = float(length <= 6)
        for t, tokens in positions(length, 4, stream).items():
            q = right if t + 1 == length else value(t + 1)
            lines.append({
                "problem_id": str(problem), "value_true": value(t), "value_variance": 0.0, "q_true": q,
                "q_variance": 0.0, "critic_advantage": right - value(t), "advantage_in_force": 0.0,
                "stands_for_tokens": tokens,
            })  # fmt: skip
    found = advantage_quality(lines, "critic")
    assert found["bias"].low < 0 < found["bias"].high
    assert abs(found["bias"].value) < 0.02
    assert found.observations == len(lines)
