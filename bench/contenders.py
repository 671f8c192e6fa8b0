"""Contenders: the objectives that a command line asks to compare, from a sweep or from a run's file."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.config import Run
from bench.loading import ConfigError, flat, load_run, read_yaml

_NAMING = {"base.algorithm", "cross.algorithm", "ablate.from", "ladder.from", "algorithm"}


class Trial(Protocol):
    """One run of a sweep and the names it goes by."""

    @property
    def algorithm(self) -> str: ...
    @property
    def arm(self) -> str: ...
    @property
    def run(self) -> Run: ...


@dataclass(frozen=True)
class Contender:
    """One objective of the comparison, with the run that would train it."""

    name: str
    run: Run


def contenders_of(
    path: Path,
    overrides: Sequence[str],
    sections: Collection[str],
    trials_of: Callable[[Path, Sequence[str]], Sequence[Trial]],
) -> list[Contender]:
    """The objectives of a sweep, at its first seed; or of a run's file, one or as many as `algorithm=a,b,c` names.

    Args:
        overrides: knobs of every run, as `key=value`.
        sections: what tells a sweep's file from a run's.
        trials_of: reads a sweep's file with overrides.

    Raises:
        ConfigError: the file cannot be read, names no algorithm, or describes a run that cannot be.
    """
    content = read_yaml(path)
    rest = [text for text in overrides if not text.startswith("algorithm=")]
    lists = [text.partition("=")[2] for text in overrides if text not in rest]
    asked = [name for names in lists for name in names.strip("[]").replace(" ", "").split(",")]
    crossed = any(text.startswith("cross.algorithm=") for text in rest)
    if not (asked or crossed or _NAMING & flat(content).keys()):
        raise ConfigError([f"{path}: names no algorithm; give some, such as algorithm=grpo,dapo"])
    if not set(sections).isdisjoint(content):
        # A sweep must hold every algorithm that it has knobs for, also those that are not compared.
        own = content.get("per_algorithm")
        every = dict.fromkeys([*asked, *(own if isinstance(own, dict) else ())])
        trials = trials_of(path, [*rest, *([f"cross.algorithm=[{','.join(every)}]"] if asked else [])])
        trials = [trial for trial in trials if not asked or trial.algorithm in asked]
        chosen = [trial for trial in trials if trial.run.seed == trials[0].run.seed]
        return [Contender(f"{t.algorithm} ({t.arm})" if t.arm else t.algorithm, t.run) for t in chosen]
    runs = [load_run(path, [*rest, f"algorithm={name}"]) for name in asked] or [load_run(path, rest)]
    return [Contender(run.algorithm, run) for run in runs]
