"""A sweep's specification becomes the list of its runs, or the list of everything that is wrong with it.

Layers of one trial, later over earlier: base, per_algorithm, the values of cross, ablate or ladder, command line.
"""

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.config import Run
from bench.loading import ConfigError, build_run, flat, nested, parse_overrides, read_yaml

SECTIONS = ("base", "cross", "per_algorithm", "ablate", "ladder")

Knobs = Mapping[str, Any]
"""Values by dotted knob."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep and the names it goes by."""

    algorithm: str
    task: str
    seed: int
    arm: str
    """What sets it apart from the plain algorithm, such as `reduction=sequence_mean`; empty where nothing does."""
    run: Run

    @property
    def name(self) -> str:
        """The trial in one line."""
        return _name(self.algorithm, self.task, self.arm, self.seed)


@dataclass(frozen=True)
class Sweep:
    """A specification read, and the runs it asks for."""

    spec: Path
    overrides: tuple[str, ...]
    trials: tuple[Trial, ...]

    @property
    def directory(self) -> Path:
        """The folder of its run directories; every trial writes to the same one."""
        output = self.trials[0].run.output
        return Path(output.root) / output.sweep


@dataclass(frozen=True)
class _Point:
    """The values that set one trial apart."""

    section: str
    knobs: Knobs
    arm: str = ""


def load_sweep(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """Read a specification and build every run it asks for.

    An override `knob=value` changes that knob in every trial; `cross.knob=[values]` changes what is crossed.

    Raises:
        ConfigError: every mistake of every trial, each once, with the section it comes from.
    """
    spec: dict[str, Any] = dict(read_yaml(path))
    command_line = parse_overrides(overrides)
    crossed = {key: command_line.pop(key) for key in list(command_line) if key.startswith("cross.")}
    lines = _malformed(spec)
    if lines:
        raise ConfigError([f"{path}: {line}" for line in lines])
    spec["cross"] = {**spec.get("cross", {}), **{key.removeprefix("cross."): value for key, value in crossed.items()}}
    lines = _axes_malformed(spec) or _given_twice(spec, command_line)
    if lines:
        raise ConfigError([f"{path}: {line}" for line in lines])
    spec["base"] = {"output.sweep": path.stem, **flat(spec.get("base", {}))}
    trials = _build(spec, list(_points(spec, command_line)), command_line)
    return Sweep(path, tuple(overrides), trials)


# The grammar


def _malformed(spec: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for name, section in spec.items():
        if name == "tune":
            lines.append(f"tune: not supported yet; the sections are {', '.join(SECTIONS)}")
        elif name not in SECTIONS:
            near = difflib.get_close_matches(name, SECTIONS, 1)
            hint = f"did you mean {near[0]}? " if near else "a knob belongs under base; "
            lines.append(f"{name}: no such section; {hint}the sections are {', '.join(SECTIONS)}")
        elif not isinstance(section, dict):
            lines.append(f"{name}: {section!r} given, must be a section with knobs")
    for name, wanted in {"ablate": ("from", "one_at_a_time"), "ladder": ("from", "to")}.items():
        section = spec.get(name)
        if isinstance(section, dict) and set(section) != set(wanted):
            lines.append(f"{name}: {', '.join(section) or 'nothing'} given, must be {' and '.join(wanted)}")
    for algorithm, knobs in _section(spec, "per_algorithm").items():
        if not isinstance(knobs, dict):
            lines.append(f"per_algorithm.{algorithm}: {knobs!r} given, must be knobs such as optimizer.lr: 1e-4")
    return lines


def _section(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = spec.get(name)
    return section if isinstance(section, dict) else {}


def _axes_malformed(spec: Mapping[str, Any]) -> list[str]:
    """Lines about lists that are crossed or taken one at a time, and about algorithms that the sweep does not have."""
    lines: list[str] = []
    variations: Any = spec.get("ablate", {}).get("one_at_a_time", {})
    if not isinstance(variations, dict):
        return [f"ablate.one_at_a_time: {variations!r} given, must be knobs, each with a list of values"]
    for where, axes in {"cross": spec["cross"], "ablate.one_at_a_time": variations}.items():
        for key, values in axes.items():
            if not isinstance(values, list) or not values:
                lines.append(f"{where}.{key}: {values!r} given, must be a list of values, such as [{values or 0}]")
            else:
                again = [value for index, value in enumerate(values) if value in values[:index]]
                lines += [f"{where}.{key}: {_text(value)} is given twice" for value in again]
    algorithms = sorted({str(name) for name in _algorithms(spec)})
    for name in spec.get("per_algorithm", {}):
        if name not in algorithms:
            near = difflib.get_close_matches(name, algorithms, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            lines.append(f"per_algorithm.{name}: not in this sweep; {hint}there are {', '.join(algorithms)}")
    return lines


def _algorithms(spec: Mapping[str, Any]) -> list[Any]:
    """The algorithms that the trials start from, in the order of the specification."""
    crossed = spec["cross"].get("algorithm", [_plain_algorithm(spec)])
    sections = [spec.get(name, {}) for name in ("ablate", "ladder")]
    ends = [section[end] for section in sections for end in ("from", "to") if end in section]
    return [*(crossed if isinstance(crossed, list) else ()), *ends]


def _plain_algorithm(spec: Mapping[str, Any]) -> str:
    return spec.get("base", {}).get("algorithm", Run.model_fields["algorithm"].default)


def _given_twice(spec: Mapping[str, Any], command_line: Knobs) -> list[str]:
    """Lines about knobs that one part of the specification sets and another one varies."""
    lines: list[str] = []
    varied = list(spec["cross"])
    fixed = {"base": flat(spec.get("base", {}))}
    fixed |= {f"per_algorithm.{name}": flat(knobs) for name, knobs in spec.get("per_algorithm", {}).items()}
    fixed["ablate.one_at_a_time"] = spec.get("ablate", {}).get("one_at_a_time", {})
    for where, knobs in fixed.items():
        for key, section in itertools.product(knobs, varied):
            if _within(key, section):
                lines.append(f"{where}.{key}: cross varies {section} already; give it in one of the two")
    for key, section in itertools.product(command_line, [*varied, *fixed["ablate.one_at_a_time"]]):
        if _within(key, section):
            narrow = f"; to choose among the values write cross.{section}=[...]" if section in varied else ""
            lines.append(f"{key}: given on the command line, but the sweep varies {section}{narrow}")
    return lines


def _within(key: str, section: str) -> bool:
    return key == section or key.startswith(f"{section}.")


# The points of the grid


def _points(spec: Mapping[str, Any], command_line: Knobs) -> Iterator[_Point]:
    """Every point, in the order of the specification; an algorithm without changes comes up once."""
    cross: dict[str, list[Any]] = spec["cross"]
    rest = {key: values for key, values in cross.items() if key != "algorithm"}
    plain: list[str] = []
    if "algorithm" in cross or "algorithm" in spec["base"] or not (spec.get("ablate") or spec.get("ladder")):
        plain += cross.get("algorithm", [_plain_algorithm(spec)])
        yield from _crossed(cross, [_Point("cross", {})])
    for name, variants in (("ablate", _ablation(spec)), ("ladder", _ladder(spec, command_line))):
        if name in spec:
            start = spec[name]["from"]
            baseline = [] if start in plain else [_Point(name, {"algorithm": start})]
            plain.append(start)
            yield from _crossed(rest, [*baseline, *variants])


def _crossed(axes: Mapping[str, list[Any]], points: list[_Point]) -> Iterator[_Point]:
    """Each point at each combination of the axes, the first axis varying slowest."""
    for point in points:
        for values in itertools.product(*axes.values()):
            chosen = dict(zip(axes, values, strict=True))
            own = [_setting(key, value) for key, value in chosen.items() if key not in ("algorithm", "task", "seed")]
            yield _Point(point.section, {**chosen, **point.knobs}, ", ".join([point.arm] * bool(point.arm) + own))


def _ablation(spec: Mapping[str, Any]) -> Iterator[_Point]:
    section = spec.get("ablate", {"one_at_a_time": {}})
    for key, values in section["one_at_a_time"].items():
        for value in values:
            yield _Point("ablate", {"algorithm": section["from"], key: value}, _setting(key, value))


def _ladder(spec: Mapping[str, Any], command_line: Knobs) -> Iterator[_Point]:
    """From one objective to another: each rung adds one differing knob, or one component where its kind differs."""
    if "ladder" not in spec:
        return
    first = {key: values[0] for key, values in spec["cross"].items()}
    ends = [_Point("ladder", {**first, "algorithm": spec["ladder"][end]}) for end in ("from", "to")]
    try:
        runs = [build_run(*map(nested, _layers(spec, end, command_line).values())) for end in ends]
    except ConfigError:
        yield from ends  # their mistakes are then reported with those of all other trials
        return
    start, goal = (run.dump()["objective"] for run in runs)
    if start["kind"] != goal["kind"]:
        raise ConfigError([f"ladder: {start['kind']} and {goal['kind']} share no knobs, there is nothing between them"])
    steps: dict[str, Any] = {}
    for axis, part in goal.items():
        if axis != "kind" and part["kind"] != start[axis]["kind"]:
            steps[f"objective.{axis}"] = part
        elif axis != "kind":
            steps |= {f"objective.{axis}.{knob}": value for knob, value in part.items() if value != start[axis][knob]}
    if not steps:
        raise ConfigError([f"ladder: {spec['ladder']['from']} and {spec['ladder']['to']} do not differ"])
    for count in range(1, len(steps) + 1):
        key, value = list(steps.items())[count - 1]
        knobs = {"algorithm": spec["ladder"]["from"], **dict(list(steps.items())[:count])}
        yield _Point("ladder", knobs, f"rung {count} of {len(steps)}: {_setting(key, value)}")


# The runs


def _layers(spec: Mapping[str, Any], point: _Point, command_line: Knobs) -> dict[str, Knobs]:
    """What a trial is made of, by the name of its origin; later layers win."""
    algorithm = str(point.knobs.get("algorithm", _plain_algorithm(spec)))
    own = spec.get("per_algorithm", {}).get(algorithm, {})
    layers = {"base": spec["base"], f"per_algorithm.{algorithm}": own}
    return layers | {point.section: point.knobs, "command line": command_line}


def _build(spec: Mapping[str, Any], points: Sequence[_Point], command_line: Knobs) -> tuple[Trial, ...]:
    trials: list[Trial] = []
    mistakes: dict[str, list[str]] = {}
    for point in points:
        layers = _layers(spec, point, command_line)
        algorithm, task, seed = _labels(layers)
        try:
            trials.append(Trial(algorithm, task, seed, point.arm, build_run(*map(nested, layers.values()))))
        except ConfigError as error:
            for line in error.lines:
                names = mistakes.setdefault(f"{line} [{_origin(line, layers)}", [])
                names.append(_name(algorithm, task, point.arm, seed))
    lines = [f"{line}{_in_which(names, len(points))}]" for line, names in mistakes.items()]
    lines = lines or _clashes(trials)
    if lines:
        raise ConfigError(lines)
    return tuple(trials)


def _labels(layers: Mapping[str, Knobs]) -> tuple[str, str, int]:
    known: dict[str, Any] = {"algorithm": Run.model_fields["algorithm"].default, "task": "", "seed": 0}
    for knobs in layers.values():
        known |= {key: knobs[key] for key in known if key in knobs}
        known |= {"task": knobs["task.name"]} if "task.name" in knobs else {}
    return str(known["algorithm"]), _text(known["task"]), known["seed"]


def _origin(line: str, layers: Mapping[str, Knobs]) -> str:
    """The last section that sets the knob a message begins with, or sets something in it; nothing if none does."""
    path = line.partition(":")[0]
    for name, knobs in reversed(list(layers.items())):
        if any(_within(key, path) or _within(path, key) for key in knobs):
            return f"{name}; "
    return ""


def _in_which(names: Sequence[str], total: int) -> str:
    if len(names) == total:
        return "the only trial" if total == 1 else f"all {total} trials"
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _clashes(trials: Sequence[Trial]) -> list[str]:
    lines: list[str] = []
    seen: dict[str, Trial] = {}
    for trial in trials:
        first = seen.setdefault(trial.run.id, trial)
        if first is not trial:
            lines.append(f"{trial.name} is the same run as {first.name} ({trial.run.id}): give each run once")
    for part in ("output", "tracking"):
        if len({getattr(trial.run, part).model_dump_json() for trial in trials}) > 1:
            lines.append(f"{part}: differs between trials; the runs of a sweep share it, give it under base")
    return lines


def _name(algorithm: str, task: str, arm: str, seed: int) -> str:
    return " ".join(part for part in (algorithm, task, f"({arm})" if arm else "", f"seed {seed}") if part)


def _setting(key: str, value: Any) -> str:
    return f"{key.removeprefix('objective.')}={_text(value)}"


def _text(value: Any) -> str:
    """A value as short as it can be told: `chain_sum`, `clip(low=0.2, high=0.28)`."""
    if isinstance(value, Mapping):
        parts = dict(value)
        name = parts.pop("kind", parts.pop("name", ""))
        inside = ", ".join(f"{key}={_text(item)}" for key, item in parts.items())
        return f"{name}({inside})" if inside else str(name)
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
