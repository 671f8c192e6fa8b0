"""Knobs of the diagnostic that says how good an objective's advantage is."""

from typing import Annotated

from pydantic import Field, field_validator

from bench.section import Count, CountOrZero, Positive, Section


class BaselineQuality(Section):
    """The critic and the group baseline against the policy's true values, measured beside training."""

    every: CountOrZero = 0
    """Updates between two measurements, from the first rollout on; the last rollout is measured too, and with 0 it
    alone. A rollout is measured before its first update."""
    problems: Count | None = None
    """Groups of the rollout that are measured: the first; null is 16, or all where there are fewer."""
    completions: Count | None = None
    """Completions of each group; null is 2, or all where there are fewer."""
    positions: Count = 4
    """Tokens of each completion: its first, and others drawn."""
    continuations: Annotated[int, Field(ge=6)] = 24
    """Continuations of each prefix in the first round; a multiple of 3, for each third decides for another how many
    more it takes."""
    max_continuations: Count = 252
    """Most continuations of one prefix."""
    standard_error: Positive = 0.05
    """Of a prefix's true value, in units of reward: the second round is as long as this is expected to take, up to the
    maximum."""

    @field_validator("continuations")
    @classmethod
    def _has_thirds(cls, continuations: int) -> int:
        if continuations % 3:
            raise ValueError(f"must be a multiple of 3, such as {-(-continuations // 3) * 3}: it is taken in thirds")
        return continuations
