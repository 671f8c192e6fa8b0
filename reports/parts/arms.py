"""An arm is the set of runs that differ in nothing but the training seed: all that a report may average."""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.store import RunRecord

NOT_COMPARED = ("seed", "output", "tracking", "checkpoint")
"""The seed makes replicates; output, tracking and checkpoints cannot change a result."""
LONGEST = 60
"""Characters of a label that a figure and a table still have room for."""


@dataclass(frozen=True, eq=False)
class Arm:
    """Runs of one configuration on one task, ordered by seed."""

    task: str
    algorithm: str
    label: str
    """What a reader sees: the algorithm's name, with the settings that set this arm apart from its siblings, if any."""
    runs: tuple[RunRecord, ...]
    unsaid: tuple[str, ...] = ()
    """What the label or the task's name has no room for, "GRPO (variant 1): " and its settings, for Settings to say."""

    @property
    def keys(self) -> dict[str, str]:
        """What a line of a CSV file needs to say which arm it is about."""
        return {"task": self.task, "algorithm": self.algorithm, "arm": self.label}

    @property
    def finished(self) -> tuple[RunRecord, ...]:
        """The runs that reached their budget: the only ones that enter an average."""
        return tuple(run for run in self.runs if run.status.state == "finished")


def arms_of(runs: Sequence[RunRecord]) -> list[Arm]:
    """Group runs into arms, ordered by task, algorithm and label."""
    tasks, unsaid_of_tasks = _labels([(run.task, _task_settings(run)) for run in runs])
    groups: dict[str, dict[str, list[RunRecord]]] = {}
    for run in runs:
        task = tasks[run.task, _key(_task_settings(run))]
        groups.setdefault(task, {}).setdefault(_key(settings_of(run)), []).append(run)
    found: list[Arm] = []
    for task, members in groups.items():
        named = {key: (_title(group[0]), settings_of(group[0])) for key, group in members.items()}
        labels, unsaid = _labels(list(named.values()))
        for key, group in members.items():
            ordered = sorted(group, key=lambda run: (run.seed is None, run.seed or 0, run.id))
            label = labels[named[key][0], key]
            lines = (*unsaid_of_tasks.get(task, ()), *unsaid.get(label, ()))
            found.append(Arm(task, group[0].algorithm, label, tuple(ordered), lines))
    return sorted(found, key=lambda arm: (arm.task, arm.algorithm, arm.label))


def by_task(arms: Iterable[Arm]) -> dict[str, list[Arm]]:
    """The arms of each task, in order."""
    tasks: dict[str, list[Arm]] = {}
    for arm in arms:
        tasks.setdefault(arm.task, []).append(arm)
    return tasks


def counted(arms: Sequence[Arm], count: Callable[[Arm], int]) -> str:
    """How many runs stand behind each arm, in words for a caption: "2 of 2", or the arms by their counts."""
    groups: dict[str, list[str]] = {}
    for arm in arms:
        groups.setdefault(f"{count(arm)} of {len(arm.runs)}", []).append(arm.label)
    if len(groups) == 1:
        return f"{next(iter(groups))} each"
    return "; ".join(f"{', '.join(labels)}: {text}" for text, labels in groups.items())


def numbered(arms: Iterable[Arm]) -> str:
    """Where a reader finds what a variant with a number is, for captions; empty where there is none."""
    return "What a variant with a number is stands in the report under Settings." if any(a.unsaid for a in arms) else ""


def _title(run: RunRecord) -> str:
    """The algorithm's name as its paper writes it: what stands before the colon of its title."""
    name, colon, _ = str((run.formula or {}).get("title", "")).partition(":")
    return name if colon and len(name) <= 20 else run.algorithm


def settings_of(run: RunRecord) -> dict[str, Any]:
    """The configuration of a run as dotted keys, without what an arm does not depend on."""
    return flatten({key: value for key, value in run.run.items() if key not in (*NOT_COMPARED, "task")})


def _task_settings(run: RunRecord) -> dict[str, Any]:
    task = run.run.get("task")
    return flatten(task) if isinstance(task, dict) else {}


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping with dotted keys, without what is None: a part left out has no settings."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            flat.update(flatten(item, f"{prefix}{key}."))
        elif item is not None:
            flat[f"{prefix}{key}"] = item
    return flat


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)


def _labels(
    named: Sequence[tuple[str, Mapping[str, Any]]],
) -> tuple[dict[tuple[str, str], str], dict[str, tuple[str, ...]]]:
    """Label each pair of a name and settings by the name; namesakes get the settings that set them apart.

    Returns the labels by name and `_key` of the settings, and a line for each label that is too long (over `LONGEST`
    characters) or would be another's too: it says "variant" and a number, and the line says which settings that is.
    """
    namesakes: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, settings in named:
        namesakes.setdefault(name, {})[_key(settings)] = settings
    labels: dict[tuple[str, str], str] = {}
    unsaid: dict[str, tuple[str, ...]] = {}
    for name, variants in namesakes.items():
        own = {variant: ", ".join(parts) for variant, parts in _differences(variants).items()}
        counts = Counter(own.values())
        numbers = itertools.count(1)
        for variant in sorted(own, key=lambda one: (own[one], one)):
            label = f"{name} ({own[variant]})" if own[variant] else name
            if counts[own[variant]] > 1 or (own[variant] and len(label) > LONGEST):
                label = f"{name} (variant {next(numbers)})"
                unsaid[label] = (f"{label}: {own[variant] or 'the usual settings'}.",)
            labels[name, variant] = label
    return labels, unsaid


def _differences(variants: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """What sets each variant apart, as "setting=value".

    A section that some lack altogether is one setting, and its own settings are compared among those that have it. A
    setting that most of those compared share is the usual one and is not spelled out.
    """
    parts: dict[str, list[str]] = {variant: [] for variant in variants}
    sections = _partial_sections(list(variants.values()))
    said = {f"{section}.kind" for section in sections}
    for key in sorted({*(key for settings in variants.values() for key in settings), *sections} - said):
        around = [section for section in sections if key.startswith(f"{section}.")]
        shown = {
            variant: _value(settings, key)
            for variant, settings in variants.items()
            if all(_has(settings, section) for section in around)
        }
        for alike in _of_one_kind(key, variants, shown):
            usual, times = Counter(alike.values()).most_common(1)[0]
            for variant, text in alike.items():
                if times < len(alike) and not (text == usual and 2 * times > len(alike)):
                    parts[variant].append(f"{_short(key)}={text}")
    return parts


def _of_one_kind(
    key: str, variants: Mapping[str, Mapping[str, Any]], shown: Mapping[str, str]
) -> Iterable[dict[str, str]]:
    """The values among which a knob of a component is compared: those of the same kind, which brings its knobs."""
    kind = f"{key.rpartition('.')[0]}.kind"
    groups: dict[Any, dict[str, str]] = {}
    for variant, text in shown.items():
        groups.setdefault(None if key == kind else variants[variant].get(kind), {})[variant] = text
    return groups.values()


def _partial_sections(variants: Sequence[Mapping[str, Any]]) -> set[str]:
    """The dotted names of the sections that some of the settings have and others lack altogether."""
    keys = {key for settings in variants for key in settings}
    names = {key[:end] for key in keys for end, letter in enumerate(key) if letter == "."}
    return {name for name in names if not all(_has(settings, name) for settings in variants)}


def _has(settings: Mapping[str, Any], section: str) -> bool:
    return any(key.startswith(f"{section}.") for key in settings)


def _value(settings: Mapping[str, Any], key: str) -> str:
    """A setting in words; a section is its kind, or "yes" where it has none."""
    if key not in settings and _has(settings, key):
        return str(settings.get(f"{key}.kind", "yes"))
    return str(settings.get(key, "none"))


def _short(key: str) -> str:
    """The end of a dotted key that a reader needs: `objective.reduction.kind` is the reduction."""
    parts = key.removeprefix("objective.").removesuffix(".kind").split(".")
    return ".".join(parts[-2:])
