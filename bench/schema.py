"""The types of a configuration as a map: which knobs stand at a place, which components may, and how that reads.

Merging, shorthand and error messages all ask this one map, so that they cannot disagree about a path.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from bench import catalog
from tasks.parts.problem import Task

_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_WORDS: dict[object, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
}


@dataclass(frozen=True)
class Place:
    """A place in a configuration: the type that stands there and the bounds on it."""

    annotation: Any
    metadata: tuple[object, ...] = ()

    @cached_property
    def members(self) -> tuple["Place", ...]:
        """The place itself, or one place for each member of a union."""
        origin, arguments = get_origin(self.annotation), get_args(self.annotation)
        if origin is Annotated:
            fields = [extra for extra in arguments[1:] if isinstance(extra, FieldInfo)]
            bounds = [bound for field in fields for bound in field.metadata]
            return Place(arguments[0], (*self.metadata, *bounds)).members
        if origin in (Union, UnionType):
            return tuple(member for argument in arguments for member in Place(argument, self.metadata).members)
        return (self,)

    @cached_property
    def sections(self) -> tuple[type, ...]:
        """The classes with knobs that may stand here."""
        types = [member.annotation for member in self.members if isinstance(member.annotation, type)]
        return tuple(cls for cls in types if hasattr(cls, "__pydantic_fields__"))

    @cached_property
    def tag(self) -> str | None:
        """The knob that says which component stands here: `name` for a task, `kind` for others, None for a section."""
        if Task in self.sections:
            return "name"
        return "kind" if any("kind" in fields_of(cls) for cls in self.sections) else None

    @property
    def choices(self) -> list[str]:
        """The values that the tag may take."""
        if Task in self.sections:
            return catalog.names("tasks")
        return [str(fields_of(cls)["kind"].default) for cls in self.sections if "kind" in fields_of(cls)]

    def section(self, value: object) -> type | None:
        """The class that says which knobs `value` has, as far as that is known."""
        if not isinstance(value, Mapping):
            return None
        if self.tag is None:
            return self.sections[0] if self.sections else None
        tag = str(value.get(self.tag))
        if (tag.partition("/")[0] if self.tag == "name" else tag) not in self.choices:
            return None
        if self.tag == "name":
            return catalog.load_task_class(str(value["name"]))
        return self.sections[self.choices.index(value["kind"])]

    def knobs(self, value: object) -> dict[str, "Place"]:
        """The places inside this one; of every component that may stand here where `value` does not say which does."""
        chosen = self.section(value)
        found: dict[str, Place] = {} if self.tag is None else {self.tag: Place(Literal[*self.choices])}
        for cls in self.sections if chosen is None else (chosen,):
            for name, field in fields_of(cls).items():
                found.setdefault(name, Place(field.annotation, tuple(field.metadata)))
        return found

    @property
    def allowed(self) -> str:
        """What may be written here, in words."""
        return " or ".join(dict.fromkeys(_words(member, self.tag, self.choices) for member in self.members))

    def below(self, value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        """The path of every knob and section inside this place, given what is already chosen in `value`."""
        for name, place in self.knobs(value).items():
            yield (*path, name)
            yield from place.below(value.get(name) if isinstance(value, Mapping) else None, (*path, name))


def fields_of(cls: type) -> dict[str, FieldInfo]:
    """The knobs of a section or component."""
    fields: dict[str, FieldInfo] = getattr(cls, "__pydantic_fields__")
    return fields


def _words(place: Place, tag: str | None, choices: list[str]) -> str:
    origin, arguments = get_origin(place.annotation), get_args(place.annotation)
    if origin is Literal:
        return _either([str(choice) for choice in arguments])
    if origin in (tuple, list):
        return f"a list, each {Place(arguments[0]).allowed}"
    if place.annotation in _WORDS:
        limits = [(words, getattr(bound, name, None)) for bound in place.metadata for name, words in _BOUNDS.items()]
        bounds = " and ".join(f"{words} {limit:g}" for words, limit in limits if limit is not None)
        return f"{_WORDS[place.annotation]}, {bounds}" if bounds else _WORDS[place.annotation]
    if tag is not None:
        return _either(choices)
    if place.sections:
        return f"a section with {', '.join(fields_of(place.annotation))}"
    return str(getattr(place.annotation, "__name__", place.annotation))


def _either(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
