"""What an interval generalises to, in the words of a caption, and where it is known to cover less than it promises."""

PROBLEMS = "these checkpoints, new problems (checkpoint-level only)"
SEEDS = "these problems, new training seeds"
SEEDS_AND_PROBLEMS = "new training seeds, new problems"
TRIALS = "independent trials with one success rate"


def caution(estimand: str, num_seeds: int, num_problems: int) -> str | None:
    """What a report must say beside an interval of this design, or None where it covers what it promises.

    The numbers are those of `docs/statistics.md`, measured by `benchmarks/coverage.py`.
    """
    fewest = min((num_seeds, "seeds"), (num_problems, "problems"))
    if estimand == SEEDS_AND_PROBLEMS and fewest[0] < 3:
        return f"with {fewest[0]} {fewest[1]} this interval is several times wider than with 5, and covers 93 to 98 %"
    return None
