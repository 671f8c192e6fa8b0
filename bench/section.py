"""What every section of a configuration has in common: frozen, strict, and its numbers within their ranges."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Threads = Annotated[int, Field(ge=1, le=1024)]
CountOrZero = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """Knobs that belong together; unknown, mistyped and non-finite values are refused."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Refused with an update, which pydantic would not validate."""
        if update:
            raise TypeError(
                "model_copy(update=...) does not validate: use bench.loading.change(run, {'a.knob': value})"
            )
        return super().model_copy(deep=deep)
