"""Needs: the models and data that an objective asks of its run, derived from its components."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What must be provided for an objective; nothing else is loaded."""

    critic: bool
    reference: bool
    groups: bool
    """At least two completions of each prompt."""
