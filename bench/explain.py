"""Validation errors in the user's words: one line each: path, value given, what is allowed, nearest name."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from bench.catalog import nearest
from bench.refusals import ALIASES, NOT_NEEDED, penalty_kind, plain_word, sampling_refusal, words_of
from bench.schema import Place, fields_of

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_TAG = ("union_tag_invalid", "union_tag_not_found")


def explain(error: ValidationError, root: Place, data: object) -> list[str]:
    """One line for each mistake that pydantic found in `data`, in the order of the schema."""
    return [_line(mistake, root, data) for mistake in error.errors(include_url=False)]


def shown(value: object) -> str:
    """A value as it would be written on the command line, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class _Step:
    """A step on the way from the whole configuration to a mistake."""

    path: str
    place: Place
    value: object

    def into(self, name: str) -> "_Step":
        path = f"{self.path}.{name}" if self.path else name
        value = self.value.get(name) if isinstance(self.value, Mapping) else None
        return _Step(path, self.place.knobs(self.value).get(name, Place(Any)), value)

    def item(self, index: int) -> "_Step":
        value = self.value[index] if isinstance(self.value, list | tuple) else None
        lists = [member for member in self.place.members if get_origin(member.annotation) in (tuple, list)]
        place = Place(get_args(lists[0].annotation)[0]) if lists else Place(Any)
        return _Step(f"{self.path}[{index}]", place, value)


def _follow(loc: Sequence[int | str], root: Place, data: object) -> list[_Step]:
    """Every step of pydantic's location, without the tags that it adds inside a union: nobody writes them in a path."""
    steps = [_Step("", root, data)]
    tag_is_due = False
    for part in loc:
        if tag_is_due:
            tag_is_due = False
            continue
        steps.append(steps[-1].item(part) if isinstance(part, int) else steps[-1].into(part))
        tag_is_due = steps[-1].place.tag == "kind" and len(steps[-1].place.sections) > 1
    return steps


def _line(mistake: Mapping[str, Any], root: Place, data: object) -> str:
    kind = mistake["type"]
    steps = _follow(mistake["loc"], root, data)
    step = steps[-1]
    if kind in _UNKNOWN:
        what = _no_such_knob(str(mistake["loc"][-1]), mistake["input"], steps[-2], root, data)
        return f"{step.path}: {shown(mistake['input'])} given, {what}"
    if kind in _TAG:
        step = step.into(str(step.place.tag))
        kind = "missing" if step.value is None else kind
    if kind.startswith("missing"):
        return f"{step.path}: missing, must be {step.place.allowed}"
    given = step.value if kind in _TAG else mistake["input"]
    if kind == "value_error":
        # What a whole section got wrong among its knobs names them itself; a task's name is the one value to repeat.
        given = given.get("name") if isinstance(given, Mapping) else given
        return f"{step.path}: {'' if given is None else f'{shown(given)} given, '}{mistake['ctx']['error']}"
    finite = " and finite" if kind == "finite_number" else ""
    return f"{step.path}: {shown(given)} given, must be {step.place.allowed}{finite}{_nearest_value(given, step.place)}"


def _nearest_value(given: object, place: Place) -> str:
    choices = [str(choice) for member in place.members for choice in get_args(member.annotation)]
    near = nearest(given, choices) if isinstance(given, str) else None
    return f"; did you mean {near}?" if near else ""


def _no_such_knob(name: str, value: object, parent: _Step, root: Place, data: object) -> str:
    refusal = sampling_refusal(parent.path, name, value)
    if refusal is not None:
        return refusal
    places = parent.place.knobs(parent.value)
    siblings = list(places)
    owners = [cls for cls in parent.place.sections if name in fields_of(cls)]
    if owners and parent.place.tag == "kind":
        kinds = " or ".join(str(fields_of(cls)["kind"].default) for cls in owners)
        current = parent.into("kind").value
        choice = f"{parent.path}.kind={fields_of(owners[0])['kind'].default}"
        return f"which is a knob of {kinds}, but {parent.path}.kind is {current}; leave it out, or give {choice}"
    for sibling, place in places.items():
        if place.tag == "kind" and name in place.choices:
            return _kind_as_knob(name, parent.into(sibling))
    elsewhere = None if nearest(plain_word(name), siblings, 0.85) else _alias(name, value, parent, root, data)
    meant = None if elsewhere else _meant(name, parent, siblings, root, data)
    hint = f"{elsewhere} " if elsewhere else f"did you mean {meant}? " if meant else ""
    return f"but there is no such knob; {hint}{parent.path or 'A run'} has {', '.join(siblings)}"


def _kind_as_knob(name: str, step: _Step) -> str:
    kind = step.into("kind").value
    if kind == name:
        knobs = ", ".join(f"{step.path}.{knob}" for knob in step.place.knobs(step.value) if knob != "kind")
        return f"but that is the kind of {step.path} already; its knobs are {knobs or 'none'}"
    return (
        f"but that is a kind of {step.path}, of which a run has one, here {kind}; leave it out, or give "
        f"{step.path}.kind={name} in its place"
    )


def _alias(name: str, value: object, parent: _Step, root: Place, data: object) -> str | None:
    """What to write for a name that others use, also inside a section that is not there; None for any other name."""
    places = list(root.below(data))
    own = {path[-1] for path in places if path[-2:-1] == (name,)}
    for word, given in words_of(name, value):
        knobs, kind = ALIASES.get(word, ()), penalty_kind(word, given)
        if word in own or not (knobs or word in NOT_NEEDED or kind is not None):
            continue
        if word in NOT_NEEDED:
            return f"{NOT_NEEDED[word]};"
        # The learning rate of a critic is the critic's.
        beside = {f"{parent.path}.{knob.rpartition('.')[2]}" for knob in knobs if " and " not in knob}
        here = sorted(beside & {".".join(path) for path in places})
        found = here or [hint for knob in knobs if (hint := _reached(knob, root, data))]
        if kind is not None and ("objective", "penalty") in places:
            found = [f"objective.penalty.kind={kind}" if kind else "objective.penalty.kind"]
        return f"did you mean {' or '.join(found)}?" if found else "the objective has nothing of the kind;"
    return None


def _reached(knob: str, root: Place, data: object) -> str | None:
    """The knob, with the kinds that have it where the kind in force has not; None where there is no such part."""
    path = knob.partition(" ")[0].split(".")
    step = _Step("", root, data)
    for name in path[:-1]:
        step = step.into(name)
    if path[-1] in step.place.knobs(step.value):
        return knob
    kinds = [str(fields_of(cls)["kind"].default) for cls in step.place.sections if path[-1] in fields_of(cls)]
    return f"{knob} with {step.path}.kind={' or '.join(kinds)}" if kinds and step.path != "objective" else None


def _meant(name: str, parent: _Step, siblings: list[str], root: Place, data: object) -> str | None:
    """The knob that was most likely meant: first here, then the same name elsewhere, then a near name elsewhere."""
    word = plain_word(name)
    if tuple(name.split(".")) in set(root.below(data)) and "." in name:
        section, _, knob = name.rpartition(".")
        return f"{knob} in the section {section}"
    here = nearest(word, siblings, 0.75)
    if here:
        return f"{parent.path}.{here}" if parent.path else here
    # Sections that are written down come first: `lr` is the optimizer's before it is that of a critic not asked for.
    places = sorted(root.below(data), key=lambda path: (not _is_written(data, path[:-1]), len(path)))
    elsewhere = nearest(word, [path[-1] for path in places], 0.7)
    if elsewhere:
        return ".".join(next(path for path in places if path[-1] == elsewhere))
    near = nearest(word, siblings)
    return f"{parent.path}.{near}" if near and parent.path else near


def _is_written(data: object, path: Sequence[str]) -> bool:
    for name in path:
        data = data.get(name) if isinstance(data, Mapping) else None
    return isinstance(data, Mapping)
