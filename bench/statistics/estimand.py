"""What an interval generalises to, in the words of a caption, and where it is known to cover less than it promises."""

from typing import Literal

PROBLEMS = "these checkpoints, new problems (checkpoint-level only)"
SEEDS = "these problems, new training seeds"
SEEDS_AND_PROBLEMS = "new training seeds, new problems"
TRIALS = "independent trials with one success rate"

Estimand = Literal[
    "these checkpoints, new problems (checkpoint-level only)",
    "these problems, new training seeds",
    "new training seeds, new problems",
]


def caution(estimand: str, num_seeds: int, num_problems: int) -> str | None:
    """What a report must say beside an interval of this design, or None where it covers what it promises.

    The numbers are those of `docs/statistics.md`, measured by `benchmarks/coverage.py`.
    """
    if estimand == SEEDS_AND_PROBLEMS and num_seeds < 3:
        return f"with {num_seeds} seeds this interval is very wide and can still cover less than it promises"
    return None
