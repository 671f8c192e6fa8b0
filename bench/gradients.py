"""`bench gradients`: the gradients of several objectives on one frozen rollout, beside each other."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from bench import checkpoint
from bench.adapted_weights import trained
from bench.casting import make_cast
from bench.config import Run
from bench.contenders import Contender
from bench.contributions import Contributions, contributions
from bench.critics import Critic
from bench.dialect import ConfigError
from bench.explain import shown
from bench.generate import ContextTooSmall, NotFinite, sample
from bench.gradient_sums import Gradient, cosines, gradient_of
from bench.instruments import Instruments
from bench.learner import Cast
from bench.loading import flat, load_run
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.models import LanguageModel, ModelUnavailable
from bench.optimize import Diverged, adamw, take_step
from bench.prepare import PreparationFailed, Start, start_content, starting_model
from bench.progress import progress
from bench.reward_model import judge_of
from bench.rewards import RewardMistake
from bench.rollout import Group, Judge, NothingToLearn, PromptStream, Sampler
from bench.seeding import stream_key

SHARED = ("task", "seed", "model", "warm_start", "adapter", "device", "threads")
SHARED_OF_ROLLOUT = ("prompts", "group_size", "max_completion_tokens", "temperature")
"""Knobs that one rollout for all objectives leaves no choice in."""


@dataclass(frozen=True)
class Row:
    """One objective at one point."""

    name: str
    skipped: str | None = None
    """Why it has no gradient here; then the numbers are None."""
    loss: float | None = None
    norm: float | None = None
    signal_to_noise: float | None = None
    bounded_share: float | None = None
    """Share of tokens that a bound on the ratio cuts or holds; None where nothing is bounded."""
    largest_ratio: float | None = None


@dataclass(frozen=True)
class Point:
    """All objectives at one set of weights, on one frozen rollout."""

    update: int
    """Of the run whose checkpoint it is; 0 is the starting model."""
    drift: int
    """Optimizer steps from the weights that sampled the rollout to the weights that the gradients are taken at."""
    drift_by: str | None
    """The objective that took these steps."""
    prompts: int
    completions: int
    tokens: int
    accuracy: float
    mixed_groups: int
    """Groups with both correct and wrong completions."""
    rows: tuple[Row, ...]
    cosine: Mapping[str, Mapping[str, float]]
    """By two names; NaN where one of the two gradients is 0."""

    @property
    def heading(self) -> str:
        """What was sampled, in one line."""
        where = f"update {self.update}" if self.update else "starting model"
        moved = f", after {self.drift} step{'s' * (self.drift > 1)} of {self.drift_by}" if self.drift else ""
        return (
            f"{where}{moved}: {self.prompts} prompts, "
            f"{self.completions} completions, {self.tokens} tokens, {self.accuracy:.3f} correct, "
            f"{self.mixed_groups} groups mixed"
        )

    def tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """Header and rows of the numbers of each objective, and of the cosines of every two."""
        numbers = [
            [row.name, *map(_shown, (row.loss, row.norm, row.signal_to_noise, row.bounded_share, row.largest_ratio))]
            for row in self.rows
        ]
        header = ["objective", "loss", "norm", "signal/noise", "bounded", "largest ratio"]
        pairs = [[a, *(f"{value:.3f}" for value in own.values())] for a, own in self.cosine.items()]
        return [(header, numbers), (["cosine", *self.cosine], pairs)]

    def skipped(self) -> list[str]:
        """A line for each objective without a gradient."""
        return [f"{row.name}: {row.skipped}" for row in self.rows if row.skipped is not None]


def compare(
    contenders: Sequence[Contender],
    *,
    along: Path | None = None,
    drifts: Sequence[int] = (0,),
    drift_by: str | None = None,
) -> Iterator[Point]:
    """Measure at the starting model and, with `along`, at every whole checkpoint of that run.

    Each set of weights samples its own rollout, of the same prompts with the same random numbers.

    Args:
        drifts: numbers of full-rollout optimizer steps after which to measure; 0 is on-policy.
        drift_by: the objective that takes them; the first one that has a gradient by default.

    Raises:
        ConfigError: the objectives cannot share a rollout, a name or a directory is wrong, a model cannot be had.
    """
    run = contenders[0].run
    _check(contenders, drift_by)
    folders = [] if along is None else _checkpoints(along, run)
    try:
        start = starting_model(run)
        torch.set_num_threads(run.threads)
        judges = _judges(contenders, start)
        casts = _casts(contenders, start.model)
        steps = sorted(set(drifts))
        with progress("gradients", (1 + len(folders)) * len(steps) * len(contenders)) as advance:
            for folder in (None, *folders):
                if folder is not None and along is not None:
                    _load(contenders, casts, folder, load_run(along / "run.yaml"))
                for point in _measured(contenders, casts, judges, steps, drift_by):
                    advance(len(contenders), "")
                    yield replace(point, update=0 if folder is None else checkpoint.step_of(folder))
    except (ModelUnavailable, PreparationFailed, ContextTooSmall, NotFinite, Diverged, RewardMistake) as error:
        raise ConfigError([str(error)]) from None


def _check(contenders: Sequence[Contender], drift_by: str | None) -> None:
    names = [contender.name for contender in contenders]
    lines = [f"{name}: given twice" for i, name in enumerate(names) if name in names[:i]]
    first, *others = ((contender.name, _shared(contender.run)) for contender in contenders)
    for name, own in others:
        lines += [
            f"{knob}: {shown(first[1].get(knob))} for {first[0]} and {shown(own.get(knob))} for {name}, but all "
            "objectives are put on one rollout; give one value"
            for knob in {**first[1], **own}
            if own.get(knob) != first[1].get(knob)
        ]
    if drift_by is not None and drift_by not in names:
        lines.append(f"--drift-by: {drift_by} given, must be one of {', '.join(names)}")
    if lines:
        raise ConfigError(list(dict.fromkeys(lines)))


def _shared(run: Run) -> dict[str, Any]:
    dump = run.dump()
    rollout = {name: dump["rollout"][name] for name in SHARED_OF_ROLLOUT}
    return flat({**{name: dump[name] for name in SHARED}, "rollout": rollout})


def _checkpoints(directory: Path, run: Run) -> list[Path]:
    """The whole checkpoints of a run that started from the same model."""
    if not (directory / "run.yaml").is_file():
        raise ConfigError([f"--along: {directory} is not a run directory: there is no run.yaml in it"])
    found = checkpoint.complete(directory / "checkpoints")
    if not found:
        hint = "a run keeps them with checkpoint.every=10 checkpoint.keep=100"
        raise ConfigError([f"--along: {directory} has no complete checkpoint; {hint}"])
    if start_content(load_run(directory / "run.yaml")) != start_content(run):
        raise ConfigError([f"--along: {directory} did not start from the model of these objectives"])
    return found


def _casts(contenders: Sequence[Contender], start: LanguageModel) -> list[Cast]:
    """Each objective's models: the policy is one, and so are the reference and each kind of critic where needed."""
    casts: list[Cast] = []
    reference: LanguageModel | None = None
    critics: dict[str, Critic] = {}
    for contender in contenders:
        cast = make_cast(contender.run, start)
        reference = reference or cast.reference
        critic = cast.critic and critics.setdefault(_critic_kind(contender.run), cast.critic)
        casts.append(replace(cast, reference=cast.reference and reference, critic=critic, critic_optimizer=None))
    return casts


def _critic_kind(run: Run, *left_out: str) -> str:
    """What a critic is, whatever it is fitted with."""
    fitting = {"lr", "max_grad_norm", "warmup_updates", *left_out}
    return "none" if run.critic is None else run.critic.model_dump_json(exclude=fitting)


def _load(contenders: Sequence[Contender], casts: Sequence[Cast], folder: Path, trained: Run) -> None:
    """Put a checkpoint's policy in place of the present one, and its critic in place of those of the same kind.

    Args:
        trained: the run whose checkpoint it is.
    """
    checkpoint.load_weights(casts[0].policy, folder / "policy")
    for contender, cast in zip(contenders, casts, strict=True):
        same = _critic_kind(contender.run, "head_init") == _critic_kind(trained, "head_init")
        if cast.critic is not None and same:
            cast.critic.load_state_dict(load_file(folder / "critic.safetensors"))


def _judges(contenders: Sequence[Contender], start: Start) -> list[Judge | None]:
    """Each objective's reward model, loaded once for all that have the same."""
    loaded: dict[str, Judge | None] = {}
    for contender in contenders:
        knobs = repr(contender.run.reward.model)
        if knobs not in loaded:
            loaded[knobs] = judge_of(contender.run, start)
    return [loaded[repr(contender.run.reward.model)] for contender in contenders]


def _measured(
    contenders: Sequence[Contender],
    casts: Sequence[Cast],
    judges: Sequence[Judge | None],
    drifts: Sequence[int],
    drift_by: str | None,
) -> Iterator[Point]:
    """The points of one frozen rollout, sampled from the weights as they are; leaves the policy drifted."""
    run, policy = contenders[0].run, casts[0].policy
    instruments = Instruments(PhaseClock(), MemoryMeter(run.device))
    groups = frozen_rollout(run, policy, instruments, judges[0])
    material: dict[str, Contributions] = {}
    skipped: dict[str, str] = {}
    for contender, cast, judge in zip(contenders, casts, judges, strict=True):
        try:
            material[contender.name] = contributions(contender.run, cast, groups, instruments, judge)
        except NothingToLearn as error:
            skipped[contender.name] = str(error)
    if drift_by in skipped:
        raise ConfigError([f"--drift-by: {drift_by} has no gradient here: {skipped[drift_by]}"])
    mover = next((contender for contender in contenders if contender.name in material), contenders[0])
    mover = next((contender for contender in contenders if contender.name == drift_by), mover)
    optimizer = adamw(trained(policy.network), mover.run.optimizer.lr, mover.run.optimizer)
    taken = 0
    for drift in drifts:
        for _ in range(drift - taken if mover.name in material else 0):
            for share in (share for own in material[mover.name] for share in own):
                share().loss.backward()
            take_step(optimizer, mover.run.optimizer.lr, mover.run.optimizer.max_grad_norm)
        taken = drift
        parameters = trained(policy.network)
        found = {name: gradient_of(own, parameters) for name, own in material.items()}
        rows = tuple(_row(c.name, found.get(c.name), skipped.get(c.name)) for c in contenders)
        by = mover.name if drift else None
        yield Point(update=0, drift=drift, drift_by=by, **_about(groups), rows=rows, cosine=cosines(found))


def frozen_rollout(
    run: Run, policy: LanguageModel, instruments: Instruments, judge: Judge | None = None
) -> list[Group]:
    """One rollout of training prompts, drawn apart from those of the runs; no group is dropped and none is added."""
    stream = PromptStream(run.task, stream_key(run.seed, "gradients"), run.rollout.prompts)
    return Sampler(run, run.task, sample, instruments, judge=judge).groups(policy, stream.round(0), 0)


def _row(name: str, gradient: Gradient | None, skipped: str | None) -> Row:
    if gradient is None:
        return Row(name, skipped)
    return Row(
        name,
        loss=gradient.loss,
        norm=gradient.norm,
        signal_to_noise=gradient.signal_to_noise,
        bounded_share=gradient.metrics.get("clip/region", gradient.metrics.get("clip/cispo")),
        largest_ratio=gradient.metrics.get("ratio/max"),
    )


def _about(groups: Sequence[Group]) -> dict[str, Any]:
    members = [member for group in groups for member in group.members]
    known = [float(m.grade.correct) for m in members if m.grade.correct is not None]
    return {
        "prompts": len(groups),
        "completions": len(members),
        "tokens": sum(len(member.completion.token_ids) for member in members),
        "accuracy": sum(known) / len(known) if known else float("nan"),
        "mixed_groups": sum(1 for group in groups if {0.0, 1.0} <= set(group.correct)),
    }


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def record(contenders: Sequence[Contender], points: Sequence[Point]) -> dict[str, Any]:
    """Everything as plain data: the run of each objective and the numbers of each point."""
    runs = {contender.name: contender.run.dump() for contender in contenders}
    return {"objectives": runs, "points": [asdict(point) for point in points]}
