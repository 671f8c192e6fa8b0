"""Rollouts: prompts in a seeded order, completions for each, their grades and rewards."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch

from algorithms.axes.selection import DropUniformGroups, Selection
from bench import processes
from bench.config import Run
from bench.generate import Completion, Generator
from bench.instruments import Instruments
from bench.models import LanguageModel
from bench.policy import Sequences
from bench.problems import load_problems, num_problems
from bench.prompting import encode_prompts, ended, stop_of
from bench.rewards import Rewarder, Sample
from bench.seeding import generator, stream_key
from bench.sharding import unsharded
from tasks.parts.problem import Grade, Problem, ProceduralTask, Task


class NothingToLearn(RuntimeError):
    """No informative group or pair was found: training would move nothing. The message says what to change."""


IDS_NAMED = 5
"""Problems that a warning names; it counts the others."""


@dataclass(frozen=True)
class Graded:
    """One completion with its verdict and the run's whole reward (not finite: unscorable)."""

    completion: Completion
    text: str
    grade: Grade
    reward: float
    observed: bool | None
    """The verdict that the learner is told: the grade's, unless the run's reward is made imperfect."""
    labelled: bool = True
    """False: its prompt carries no label, so there is neither a reward nor a verdict to be told."""
    failures: int = 0
    """How many of the user's reward functions failed on it."""
    score: float | None = None
    """The reward model's, before its weight; None without one or without a label."""

    @property
    def scorable(self) -> bool:
        """Whether there is a reward to learn from."""
        return math.isfinite(self.reward)


@dataclass(frozen=True)
class Group:
    """All completions of one prompt."""

    problem: Problem
    prompt_ids: tuple[int, ...]
    members: tuple[Graded, ...]
    round: int = 0
    """Round of sampling that it came in, and where in it: what the draws of its rewards depend on."""
    position: int = 0

    @property
    def correct(self) -> list[float]:
        """The bit of each member that the learner is told; NaN where there is none."""
        return [float("nan") if m.observed is None else float(m.observed) for m in self.members]

    @property
    def labelled(self) -> bool:
        """Whether its prompt carries a label; a prompt has one for all of its completions or for none."""
        return all(member.labelled for member in self.members)

    @property
    def verdict(self) -> str:
        """What the known verdicts of the group say together: right, wrong, mixed; unscorable where none is known, and
        unlabelled where none could be."""
        known = {m.observed for m in self.members} - {None}
        if not known:
            return "unscorable" if self.labelled else "unlabelled"
        return "mixed" if len(known) > 1 else "right" if True in known else "wrong"


@dataclass(frozen=True)
class Collected:
    """One rollout after selection, and what it cost."""

    groups: list[Group]
    """Those that are trained on."""
    sampled: list[Group]
    """All that were sampled, the others included."""
    rounds: int
    """Rounds of sampling used."""
    carried: int = 0
    """How many of `groups` were left over by earlier rollouts, and so are an older policy's."""
    surplus: tuple[Group, ...] = ()
    """Informative groups beyond the batch, for the next rollout; none where the selection discards them."""


class PromptStream:
    """The prompts of each generation round: a function of seed and round alone, so every algorithm sees the same."""

    def __init__(self, task: Task, seed: int, per_round: int):
        self.task, self.seed, self.per_round = task, seed, per_round
        self.size = None if isinstance(task, ProceduralTask) else num_problems(task, "train")

    def round(self, index: int) -> list[Problem]:
        """Problems of round `index`; a finite data set is passed in a new order each epoch."""
        if isinstance(self.task, ProceduralTask):
            keys = [stream_key(self.seed, "prompts", index, i) for i in range(self.per_round)]
            return [self.task.generate("train", key) for key in keys]
        assert self.size is not None, "only procedural tasks are unbounded"
        problems = load_problems(self.task, "train", 0, self.size)
        positions = range(index * self.per_round, (index + 1) * self.per_round)
        orders = {
            epoch: generator(self.seed, "prompt order", epoch).permutation(self.size)
            for epoch in {position // self.size for position in positions}
        }
        return [problems[orders[position // self.size][position % self.size]] for position in positions]

    def coverage(self, rounds: int) -> dict[str, float]:
        """How many problems of a finite data set the first `rounds` rounds hold and lack; nothing where it is endless.

        No problem comes again before the last one has come, so a round that does not fit into an epoch is filled from
        the next one, and none is dropped.
        """
        if self.size is None:
            return {}
        seen = min(self.size, rounds * self.per_round)
        return {"prompts/seen": seen, "prompts/unseen": self.size - seen}


Judge = Callable[[Sequence[Group]], list[float]]
"""A reward model at work: the score of each completion, group by group. All processes of a run ask it together."""


def rewarded(rewarder: Rewarder, groups: Sequence[Group]) -> list[Group]:
    """The same completions with the rewards, and the verdicts to be told, of a run; their grades and scores stay."""
    worths = iter(rewarder.worths(samples_of(groups)))
    return [
        replace(group, members=tuple(replace(member, **vars(next(worths))) for member in group.members))
        for group in groups
    ]


def judged(judge: Judge | None, rewarder: Rewarder, groups: Sequence[Group]) -> list[Group]:
    """The same completions with the reward model's scores, where their prompts carry a label."""
    if judge is None:
        return list(groups)
    # A prompt has a label for all of its completions or for none.
    asked = [all(rewarder.labelled(samples_of([group]))) for group in groups]
    scores = iter(judge([group for group, labelled in zip(groups, asked, strict=True) if labelled]))
    return [
        replace(group, members=tuple(replace(m, score=next(scores) if labelled else None) for m in group.members))
        for group, labelled in zip(groups, asked, strict=True)
    ]


def samples_of(groups: Sequence[Group], members: Sequence[Sequence[int]] | None = None) -> list[Sample]:
    """Every completion with its place in the run.

    Args:
        members: what stands for the completions' places in their groups; None is their numbers.
    """
    return [
        Sample(
            problem=group.problem,
            text=member.text,
            grade=member.grade,
            round=group.round,
            position=group.position,
            member=members[g][i] if members is not None else i,
            score=member.score,
        )
        for g, group in enumerate(groups)
        for i, member in enumerate(group.members)
    ]


@dataclass(frozen=True)
class Sampler:
    """Everything that turns problems into graded groups: the engine, the task and the run's reward."""

    run: Run
    task: Task
    generate: Generator
    instruments: Instruments
    log: Path | None = None
    """Where failures of the user's reward functions are written, as JSON lines."""
    judge: Judge | None = None
    """The run's reward model, where it has one."""
    told: set[str] = field(default_factory=set[str])
    """Warnings that were given, so that each comes once."""

    @cached_property
    def rewarder(self) -> Rewarder:
        return Rewarder(self.run, self.log)

    def groups(self, model: LanguageModel, problems: Sequence[Problem], round_index: int) -> list[Group]:
        """Sample and grade `rollout.group_size` completions of each problem.

        Processes sample and grade whole groups, each its own share of them, and share the reward model's passes;
        rewards are the main process's, so that the user's functions are called as they are by one process.
        """
        rollout = self.run.rollout
        prompts = encode_prompts(model, self.task, problems, self.run.prompt)
        keys = [
            [stream_key(self.run.seed, "rollout", round_index, i, problem.id, m) for m in range(rollout.group_size)]
            for i, problem in enumerate(problems)
        ]
        own_prompts, own_keys = processes.mine(prompts), processes.mine(keys)
        with self.instruments.phase("rollout"), unsharded(model.network):
            how = {"max_tokens": rollout.max_completion_tokens, "temperature": rollout.temperature}
            completions = self.generate(model, own_prompts, own_keys, **how) if own_prompts else []
            # The slowest process's seconds belong to the tokens of all.
            processes.barrier()
        self.instruments.clock.count(
            prompt=sum(map(len, prompts)) * rollout.group_size,
            generated=processes.total_count(sum(len(c.token_ids) for own in completions for c in own)),
            completions=len(prompts) * rollout.group_size,
        )
        with self.instruments.phase("reward"):
            graded = iter(self.graded(model, processes.mine(problems), completions))
            members = processes.gather_items([tuple(next(graded) for _ in own) for own in completions])
            groups = [
                Group(problem, tuple(prompt), own, round_index, i)
                for i, (problem, prompt, own) in enumerate(zip(problems, prompts, members, strict=True))
            ]
        if self.judge is not None:
            with self.instruments.phase("reward_model"):
                groups = judged(self.judge, self.rewarder, groups)
        with self.instruments.phase("reward"):
            return processes.from_main(lambda: rewarded(self.rewarder, groups))

    def graded(
        self, model: LanguageModel, problems: Sequence[Problem], completions: Sequence[Sequence[Completion]]
    ) -> list[Graded]:
        """All completions of each problem decoded and graded, at once so that slow verdicts are found side by side; no
        rewards yet."""
        stop = stop_of(self.run.prompt)
        flat = [
            (problem, *ended(model, completion, stop))
            for problem, own in zip(problems, completions, strict=True)
            for completion in own
        ]
        grades = self.task.grade_all([(problem, text, not said.terminated) for problem, said, text in flat])
        return [
            Graded(completion, text, grade, math.nan, grade.correct)
            for (_, completion, text), grade in zip(flat, grades, strict=True)
        ]

    def collect(
        self,
        model: LanguageModel,
        stream: PromptStream,
        first_round: int,
        selection: Selection,
        carried: Sequence[Group] = (),
    ) -> Collected:
        """Sample rounds until `rollout.prompts` groups are selected, or the selection's rounds are used up.

        Groups that earlier rollouts left over come first. They are always fewer than a batch, so a round is sampled.
        """
        wanted = self.run.rollout.prompts
        assert len(carried) < wanted, "a surplus is the rest of one round, whose first group was still needed"
        kept: list[Group] = [*carried]
        passed_over: list[Group] = []
        sampled: list[Group] = []
        rounds = 0
        while len(kept) < wanted and rounds < selection.max_rounds:
            groups = self.groups(model, stream.round(first_round + rounds), first_round + rounds)
            keep = selection.keep(torch.tensor([group.correct for group in groups], dtype=torch.float64)).tolist()
            kept += [group for group, chosen in zip(groups, keep, strict=True) if chosen]
            passed_over += [group for group, chosen in zip(groups, keep, strict=True) if not chosen]
            rounds += 1
            sampled += groups
        self.warn(sampled)
        if len(kept) < wanted and isinstance(selection, DropUniformGroups):
            kept = _exhausted(selection, kept, passed_over, wanted, len(sampled))
        surplus = tuple(kept[wanted:]) if selection.surplus == "carry_over" else ()
        return Collected(kept[:wanted], sampled, rounds, len(carried), surplus)

    def warn(self, groups: Sequence[Group]) -> None:
        """One line on stderr the first time that completions cannot be scored: how many, and of which problems."""
        line = unscorable_line(groups) if processes.is_main() else None
        if line and "unscorable" not in self.told:
            self.told.add("unscorable")
            print(f"{self.run.algorithm} seed {self.run.seed}: {line}", file=sys.stderr)


def unscorable_line(groups: Sequence[Group]) -> str | None:
    """How many completions have no reward, in which problems, and where to look; None where all have one.

    Prompts that were not meant to carry a label are no failure, and are left out.
    """
    groups = [group for group in groups if group.labelled]
    lost = [member for group in groups for member in group.members if not member.scorable]
    if not lost:
        return None
    wholly = sum(1 for group in groups if not any(member.scorable for member in group.members))
    ids = list(dict.fromkeys(g.problem.id for g in groups if not all(member.scorable for member in g.members)))
    more = f" and {len(ids) - IDS_NAMED} more" if len(ids) > IDS_NAMED else ""
    failed = any(member.failures for member in lost)
    where = "the reward functions with" if failed else "the grader and the gold answers of"
    return (
        f"{len(lost)} of {sum(len(group.members) for group in groups)} completions are unscorable, {wholly} of "
        f"{len(groups)} groups wholly; they take part in nothing: look at {where} "
        f"{', '.join(ids[:IDS_NAMED])}{more}"
    )


def _exhausted(
    selection: DropUniformGroups, kept: list[Group], passed_over: list[Group], wanted: int, sampled: int
) -> list[Group]:
    """What the selection's policy makes of too few informative groups."""
    if selection.on_exhausted == "pad_with_uniform":
        return kept + passed_over[: wanted - len(kept)]
    if selection.on_exhausted == "use_partial" and kept:
        return kept
    raise NothingToLearn(_exhaustion(selection, len(kept), passed_over, wanted, sampled))


def _exhaustion(
    selection: DropUniformGroups, found: int, passed_over: Sequence[Group], wanted: int, sampled: int
) -> str:
    """Why the groups were passed over, and what would help against the most frequent reason."""
    verdicts = [group.verdict for group in passed_over]
    counts = {kind: verdicts.count(kind) for kind in ("right", "wrong", "unscorable", "unlabelled")}
    right, wrong, unscorable, unlabelled = (f"{count} ({count / sampled:.0%})" for count in counts.values())
    without = f", {unlabelled} without a label" if counts["unlabelled"] else ""
    most = max(counts, key=lambda kind: counts[kind])
    if most == "unlabelled":
        advice = "raise reward.sparsity or objective.selection.max_rounds: a group without a label teaches nothing"
    elif most == "unscorable":
        advice = "look at the grader and the gold answers: a group without a verdict teaches nothing"
    else:
        # The other two ways of going on train on the groups found; with none there is nothing but uniform ones.
        ways = "use_partial or pad_with_uniform" if found else "pad_with_uniform"
        advice = (
            f"make the task {'harder' if most == 'right' else 'easier'}, enlarge rollout.group_size or "
            f"objective.selection.max_rounds, or set objective.selection.on_exhausted={ways}"
        )
    return (
        f"dynamic sampling found {found} of {wanted} groups with both right and wrong completions in "
        f"{selection.max_rounds} rounds ({sampled} groups sampled; by their known verdicts {right} all right, {wrong} "
        f"all wrong, {unscorable} unscorable{without}): {advice}"
    )


def sequences_of(groups: Sequence[Group], pad_id: int) -> Sequences:
    """All completions of all groups, in order, as one rectangle."""
    prompts = [group.prompt_ids for group in groups for _ in group.members]
    return Sequences.of(prompts, [m.completion.token_ids for group in groups for m in group.members], pad_id)


def sampler_logps(groups: Sequence[Group], width: int) -> torch.Tensor:
    """The engine's own log-probabilities: float32 (rows, width), 0 beyond each completion."""
    rows = [m.completion.logps for group in groups for m in group.members]
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows], dtype=torch.float32)
