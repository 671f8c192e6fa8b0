"""One decorator turns a class into a component: frozen, keyword-only, validated, tagged with its `kind`."""

import dataclasses
import inspect
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, cast, dataclass_transform

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

T = TypeVar("T")

_CONFIG = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False)


def snake_case(name: str) -> str:
    """`GroupTokenMean` -> `group_token_mean`; runs of capitals stay together, so `GAE` -> `gae`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


@dataclass_transform(kw_only_default=True, frozen_default=True)
def knobs(cls: type[T]) -> type[T]:
    """Make `cls` a frozen keyword-only dataclass that refuses unknown or mistyped knobs.

    A field `kind`, the snake case of the class name, is put first: it names the component in YAML and tells the members
    of a union apart. Documentation of a field is the string under it.
    """
    kind = snake_case(cls.__name__)
    cls.__annotations__ = {"kind": Literal[kind], **inspect.get_annotations(cls)}
    setattr(cls, "kind", kind)
    return cast(type[T], dataclass(frozen=True, kw_only=True, config=_CONFIG)(cls))


def kind_of(component: object) -> str:
    """The component's name in YAML."""
    return snake_case(type(component).__name__)


def knobs_of(component: object) -> Mapping[str, Any]:
    """The component's own knobs and their values, without its `kind`."""
    names = [field.name for field in dataclasses.fields(cast(Any, component))]
    return {name: getattr(component, name) for name in names if name != "kind"}
