"""One measurement: prefixes of a rollout with their true values, beside what critic and group made of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from algorithms.axes.batch import Credit, Rollout
from algorithms.axes.policy_gradient import PolicyGradient
from bench import processes, store
from bench.baseline_quality.continuations import Continuer, Prefix
from bench.baseline_quality.returns import critic_advantage, discount, returns_to_go
from bench.baseline_quality.truth import PARTS, Truth, true_values
from bench.config import Run
from bench.config_quality import BaselineQuality
from bench.learner import Cast
from bench.rewards import Rewarder
from bench.rollout import Group, Sampler
from bench.seeding import generator, stream_key

FILE = "baseline_quality.jsonl"
DEFAULT_PROBLEMS, DEFAULT_COMPLETIONS = 16, 2


@dataclass(frozen=True)
class Quality:
    """Measures rollouts of a run at the cadence that it asks for, and writes a line for each token looked at."""

    run: Run
    config: BaselineQuality
    objective: PolicyGradient
    cast: Cast
    sampler: Sampler
    directory: Path

    @cached_property
    def _rewarder(self) -> Rewarder:
        # Its own, so that what it remembers of the user's functions is not training's.
        return Rewarder(self.run)

    def is_due(self, update: int, step: int) -> bool:
        """Whether the rollout that `step` updates after `update` are made of is to be measured."""
        every = self.config.every
        crossed = every > 0 and (update + step - 1) // every > (update - 1) // every
        return crossed or update + step >= self.run.budget.updates

    def measure(self, groups: Sequence[Group], rollout: Rollout, credit: Credit, first: int) -> None:
        """Write the lines of a rollout; arguments as for `lines`."""
        lines = self.lines(groups, rollout, credit, first)
        if processes.is_main():
            for line in lines:
                store.append_jsonl(self.directory / FILE, line)

    def lines(self, groups: Sequence[Group], rollout: Rollout, credit: Credit, first: int) -> list[dict[str, Any]]:
        """A record for each token looked at, by the policy that sampled the rollout.

        Args:
            groups: all of the rollout, in the order of the rows.
            first: the first that is this policy's own; those before it were carried over.
        """
        update = self.cast.progress.update
        key = stream_key(self.run.seed, "baseline quality", update)
        continuer = Continuer(self.run, self.objective, self.cast, self.sampler, self._rewarder, key)
        found = measured(self.config, continuer, groups, rollout, credit, first)
        return [{"update": update, **line} for line in found]


def measured(
    config: BaselineQuality,
    continuer: Continuer,
    groups: Sequence[Group],
    rollout: Rollout,
    credit: Credit,
    first: int = 0,
) -> list[dict[str, Any]]:
    """A record for each token looked at; what there is not is None. Other arguments as for `Quality.lines`."""
    scene = _Scene.of(continuer.objective, rollout, credit)
    chosen = [(i, m) for i in range(first, len(groups)) for m in _members(groups[i], config)]
    own = sorted({i for i, _ in chosen})[: config.problems or DEFAULT_PROBLEMS]
    places = [
        (groups[i], m, i * len(groups[i].members) + m, t, tokens)
        for i, m in chosen
        if i in own
        for t, tokens in _positions(continuer.key, groups[i], m, config.positions).items()
    ]
    states: dict[tuple[int, ...], Prefix] = {}
    for group, m, _, t, _ in places:
        for length in (t, t + 1):
            if (prefix := _prefix(group, m, length)) is not None:
                states.setdefault(prefix.state, prefix)
    prefixes = list(states.values())
    size = config.continuations // PARTS

    def draw(blocks: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        return continuer.returns([(prefixes[i], number) for i, number in blocks], size)

    truths = dict(zip(states, true_values(len(prefixes), draw, config), strict=True))
    lines: list[dict[str, Any]] = []
    for group, m, row, t, stands_for in places:
        state, after = _prefix(group, m, t), _prefix(group, m, t + 1)
        assert state is not None, "a token stands before it"
        following = None if after is None else truths[after.state]
        tokens = continuer.spent.pop(state.state, 0)  # counted once, with the first token that needed it
        tokens += 0 if after is None else continuer.spent.pop(after.state, 0)
        record = {**scene.record(group, m, row, t), **scene.truth(row, t, truths[state.state], following)}
        lines.append(_known(record) | {"stands_for_tokens": stands_for, "num_sampled_tokens": tokens})
    return lines


def _known(value: Any) -> Any:
    """The same record with None for what is not a number."""
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_known(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def positions(length: int, count: int, stream: np.random.Generator) -> dict[int, float]:
    """The first token of a completion and up to `count` - 1 of the others, drawn; with how many tokens each stands for.

    Tokens evenly from the first to the last would look ahead: which one is a third of the way is known when the
    completion has ended, so the luck of the rest would not cancel, and a perfect critic's advantages had a bias.
    """
    drawn = sorted((1 + stream.choice(length - 1, min(count, length) - 1, replace=False)).tolist())
    return {0: 1.0, **dict.fromkeys(drawn, (length - 1) / max(len(drawn), 1))}


def _positions(key: int, group: Group, member: int, count: int) -> dict[int, float]:
    stream = generator(key, "positions", group.round, group.position, member)
    return positions(len(group.members[member].completion.token_ids), count, stream)


def _members(group: Group, config: BaselineQuality) -> list[int]:
    """The members that are looked at: the first with a reward."""
    return [m for m, member in enumerate(group.members) if member.scorable][: config.completions or DEFAULT_COMPLETIONS]


def _prefix(group: Group, member: int, length: int) -> Prefix | None:
    """The first tokens of a member; None where that is all of it, so that nothing is left to continue."""
    said = group.members[member].completion
    if length >= len(said.token_ids):
        return None
    return Prefix(group, said.token_ids[:length], said.logps[:length])


@dataclass(frozen=True)
class _Scene:
    """A rollout with all that is told of its tokens."""

    gamma: float
    to_go: Tensor
    credit: Credit
    value: Tensor | None
    advantage: Tensor | None
    """The critic's, before whitening."""

    @classmethod
    def of(cls, objective: PolicyGradient, rollout: Rollout, credit: Credit) -> "_Scene":
        to_go, advantage = returns_to_go(objective, rollout), critic_advantage(objective, rollout)
        return cls(discount(objective), to_go, credit, rollout.value, advantage)

    def record(self, group: Group, member: int, row: int, t: int) -> dict[str, Any]:
        """What the rollout says of a token: where it stands, the returns, the critic, the advantage in force."""
        said = group.members[member].completion
        first = row - member
        whole = self.to_go[first : first + len(group.members), 0].tolist()
        taken = bool(self.credit.mask[row, t])
        return {
            "problem_id": group.problem.id,
            "round": group.round,
            "group": group.position,
            "member": member,
            "position": t,
            "length": len(said.token_ids),
            "terminated": said.terminated,
            "return_to_go": float(self.to_go[row, t]),
            "group_returns": whole,
            "critic_value": None if self.value is None else float(self.value[row, t]),
            "critic_advantage": None if self.advantage is None or not taken else float(self.advantage[row, t]),
            "advantage_in_force": float(self.credit.advantage[row, t]) if taken else None,
        }

    def truth(self, row: int, t: int, before: Truth, after: Truth | None) -> dict[str, Any]:
        """V(s_t) and Q(s_t, a_t) with their variances; after the last token nothing is left to estimate."""
        own = float(self.to_go[row, t])
        if after is None:
            q, variance = own, 0.0
        else:
            # The token's own reward is what its return has beyond the discounted return from the next token on.
            q = own - self.gamma * float(self.to_go[row, t + 1]) + self.gamma * after.mean
            variance = self.gamma**2 * after.variance
        return {
            "value_true": before.mean,
            "value_variance": before.variance,
            "num_continuations": before.count,
            "q_true": q,
            "q_variance": variance,
            "q_num_continuations": 0 if after is None else after.count,
        }
