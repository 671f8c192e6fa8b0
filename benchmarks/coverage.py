"""How often each interval of `bench.statistics` holds the true value: simulated, for every estimand and design.

    python benchmarks/coverage.py [simulations]     prints the tables of docs/statistics.md (a few minutes on one core)

A model's rate on a problem is logit-normal: skill + problem + arm x problem + training seed + seed x problem, and 8
Bernoulli samples a problem are scored. The true values are integrals of that, not simulated. Two arms share the
problems and nothing else. Every interval comes from the function that reports call.
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special, stats

from bench.statistics import (
    PROBLEMS,
    SEEDS,
    SEEDS_AND_PROBLEMS,
    Interval,
    accuracy_interval,
    claim,
    crossed_interval,
    equivalence,
    interval_for,
    iqm_interval,
    problems_band,
    problems_interval,
    seeds_band,
    tied_with_best,
)
from bench.statistics.crossed import crossed_half_width, mean_squares

SAMPLES = 8
SKILL, PROBLEM_SD, ARM_SD, BOTH_SD = 0.5, 1.5, 0.3, 0.3
"""On the logit scale; problems' rates then spread over .05 to .98."""
SEED_SD = {"modest": 0.06, "large": 0.25}
"""About 1 and 4 points of a seed's mean accuracy."""
MARGIN = 0.02
K, DRAWN = 16, 64
"""Of the nearly saturated Pass@K, and the samples that it is estimated from."""
SHORT = ("checkpoints, new problems", "new seeds", "new seeds and problems")
NODES, WEIGHTS = special.roots_hermitenorm(80)
GRID = np.linspace(-15, 15, 6001)
CHUNK = 2_000_000
"""Cells of a simulated table held at once."""


@dataclass(frozen=True)
class Design:
    """How many training seeds and problems, and how far apart training seeds are."""

    seeds: int
    problems: int
    effect: str

    def __str__(self) -> str:
        return f"{self.seeds} | {self.problems:,} | {self.effect}"


NEAR, NEARER, BELOW = (0.977, 0.986), (0.998, 0.999), (0.999, 0.979)
SATURATED = [
    *((seeds, 30, levels) for seeds in (1, 3) for levels in (NEAR, NEARER, BELOW)),
    *((3, problems, levels) for problems in (500, 1319) for levels in (NEARER, BELOW)),
]
"""Seeds, problems, and the two true values; in the last pair they lie 2 points apart."""
DESIGNS = [Design(seeds, problems, effect) for seeds in (3, 5) for problems in (30, 500, 1319) for effect in SEED_SD]


def mean_rate(center: np.ndarray | float, sd: float) -> np.ndarray:
    """The mean of a logit-normal rate, by Gauss-Hermite quadrature."""
    return special.expit(np.asarray(center)[..., None] + sd * NODES) @ WEIGHTS / WEIGHTS.sum()


def tables(design: Design, skills: Sequence[float], count: int, seed: int) -> Iterator[tuple[np.ndarray, dict]]:
    """One [arms, seeds, problems] table of rates at a time, with each arm's true value for every estimand."""
    generator = np.random.default_rng([seed, design.seeds, design.problems, *design.effect.encode()])
    sd, arms = SEED_SD[design.effect], len(skills)
    block = max(1, CHUNK // (arms * design.seeds * design.problems))
    everywhere = mean_rate(np.array(skills), math.hypot(PROBLEM_SD, ARM_SD, BOTH_SD, sd))
    on_grid = mean_rate(GRID, math.hypot(BOTH_SD, sd))
    for start in range(0, count, block):
        size = min(block, count - start)
        hard = generator.normal(0, PROBLEM_SD, (size, 1, design.problems))
        hard = np.array(skills)[:, None] + hard + generator.normal(0, ARM_SD, (size, arms, design.problems))
        trained = generator.normal(0, sd, (size, arms, design.seeds, 1))
        rate = hard[:, :, None] + trained + generator.normal(0, BOTH_SD, (size, arms, design.seeds, design.problems))
        rate = special.expit(rate).astype(np.float32)
        correct = np.zeros(rate.shape, np.int8)
        for _ in range(SAMPLES):
            correct += generator.random(rate.shape, dtype=np.float32) < rate
        here = np.interp(hard, GRID, on_grid).mean(axis=-1)
        these = mean_rate(trained[..., 0] + np.array(skills)[:, None], math.hypot(PROBLEM_SD, ARM_SD, BOTH_SD)).mean(
            axis=-1
        )
        for i in range(size):
            yield correct[i] / SAMPLES, {PROBLEMS: these[i], SEEDS: here[i], SEEDS_AND_PROBLEMS: everywhere}


def percent(hits: float, count: int) -> str:
    """A share with its Monte Carlo standard error, in percent."""
    share = hits / count
    return f"{100 * share:.1f} +-{100 * math.sqrt(share * (1 - share) / count):.1f}"


def coverage(design: Design, simulations: int, seed: int = 0) -> dict[str, int]:
    """How many of the simulated intervals hold the true value, by estimand, for one arm and for the difference."""
    hits = {f"{what}, {name}": 0 for what in ("one", "difference") for name in (PROBLEMS, SEEDS, SEEDS_AND_PROBLEMS)}
    for table, truth in tables(design, (SKILL, SKILL + 0.1), simulations, seed):
        for name in (PROBLEMS, SEEDS, SEEDS_AND_PROBLEMS):
            one, difference = interval_for(table[0], name), interval_for(table[1] - table[0], name)
            hits[f"one, {name}"] += holds(one, truth[name][0])
            hits[f"difference, {name}"] += holds(difference, truth[name][1] - truth[name][0])
    return hits


def holds(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


# Ways to the interval for new seeds and new problems that were tried; each returns its half width.


def satterthwaite(
    seeds: float, problems: float, interaction: float, freedom: tuple[int, int], floor: bool = True
) -> float:
    """With the variance kept from falling below either source alone, or as it is."""
    variance = max(seeds + problems - interaction, *((seeds, problems) if floor else (1e-12,)))
    spread = seeds**2 / freedom[0] + problems**2 / freedom[1]
    return float(special.stdtrit(max(variance**2 / spread, min(freedom)), 0.975)) * math.sqrt(variance)


def fewest(seeds: float, problems: float, interaction: float, freedom: tuple[int, int]) -> float:
    variance = max(seeds + problems - interaction, seeds, problems)
    return float(special.stdtrit(min(freedom), 0.975)) * math.sqrt(variance)


def larger(seeds: float, problems: float, interaction: float, freedom: tuple[int, int]) -> float:
    each = [float(special.stdtrit(df, 0.975)) ** 2 * v for df, v in zip(freedom, (seeds, problems), strict=True)]
    return math.sqrt(max(each))


def added(seeds: float, problems: float, interaction: float, freedom: tuple[int, int]) -> float:
    each = [float(special.stdtrit(df, 0.975)) ** 2 for df in freedom]
    return math.sqrt(each[0] * max(seeds - interaction, 0.0) + each[1] * problems)


TRIED: dict[str, Callable[[float, float, float, tuple[int, int]], float]] = {
    "Satterthwaite": satterthwaite,
    "fewest d.o.f.": fewest,
    "larger of two t": larger,
    "sum of two t": added,
}


def alternatives(design: Design, simulations: int, seed: int = 0) -> dict[str, tuple[int, float]]:
    """Hits and mean half width, in points, of the difference on new seeds and problems, by the way to it."""
    found = {name: [0, 0.0] for name in ("ours", *TRIED, "t over seeds")}
    for table, truth in tables(design, (SKILL, SKILL + 0.1), simulations, seed):
        difference = table[1] - table[0]
        value = truth[SEEDS_AND_PROBLEMS][1] - truth[SEEDS_AND_PROBLEMS][0]
        interval, over_seeds = crossed_interval(difference), interval_for(difference, SEEDS)
        widths = {"ours": interval.half_width, "t over seeds": over_seeds.half_width}
        squares, scale = mean_squares(difference), 1 / math.sqrt(difference.size)
        freedom = (design.seeds - 1, design.problems - 1)
        widths |= {name: scale * way(*squares, freedom) for name, way in TRIED.items()}
        for name, width in widths.items():
            found[name][0] += abs(interval.mean - value) <= width
            # Seeds that agree give no interval: it holds nothing, and adds no width.
            found[name][1] += 0.0 if math.isnan(width) else 100 * width / simulations
    return {name: (int(hits), width) for name, (hits, width) in found.items()}


def mixed(seeds: int, share: float, interaction: float, simulations: int, problems: int = 500) -> dict[str, int]:
    """Normal data by the share of the seeds in the variance of the mean: ours, and the two it is the mean of.

    Args: interaction, its share in the mean square of problems.
    """
    generator, freedom = np.random.default_rng([6, seeds]), (seeds - 1, problems - 1)
    between = 1 - share if share < 1 else 0.02
    expected = np.array([share + interaction * between, between, interaction * between])
    degrees = np.array([*freedom, freedom[0] * freedom[1]])
    hits = {"Satterthwaite": 0, "generalised": 0, "ours": 0}
    for _ in range(simulations):
        of_seeds, of_problems, of_both = expected * generator.chisquare(degrees) / degrees
        distance = abs(generator.normal()) * math.sqrt(expected[0] + expected[1] - expected[2])
        ours = crossed_half_width((of_seeds, of_problems, of_both), freedom, 0.95)
        lean = satterthwaite(of_seeds, of_problems, of_both, freedom, floor=False)
        for name, width in (("Satterthwaite", lean), ("generalised", 2 * ours - lean), ("ours", ours)):
            hits[name] += distance <= width
    return hits


def pass_rate(skill: float, sd: float) -> float:
    """The mean Pass@K of a logit-normal rate."""
    return float((1 - special.expit(-skill - sd * NODES) ** K) @ WEIGHTS / WEIGHTS.sum())


def saturated(seeds: int, problems: int, levels: tuple[float, float], simulations: int) -> dict[str, int]:
    """Two arms with these true Pass@K: intervals that hold it, that carry a caution, and differences called equivalent.

    An interval without bounds holds nothing. With one seed the intervals are those over problems.
    """
    generator = np.random.default_rng([7, seeds, problems])
    total = math.hypot(PROBLEM_SD, ARM_SD, BOTH_SD, SEED_SD["modest"])
    skills: list[float] = [optimize.brentq(lambda x, p=p: pass_rate(x, total) - p, -5.0, 15.0) for p in levels]  # pyright: ignore
    names: tuple[str, ...] = ("one", "one cautioned", "difference", "cautioned", "t tests alone", "equivalent")
    hits: dict[str, int] = dict.fromkeys(names, 0)
    for _ in range(simulations):
        hard = generator.normal(0, PROBLEM_SD, (1, 1, problems)) + generator.normal(0, ARM_SD, (2, 1, problems))
        logit = hard + np.array(skills)[:, None, None] + generator.normal(0, BOTH_SD, (2, seeds, problems))
        logit += generator.normal(0, SEED_SD["modest"], (2, seeds, 1))
        wrong = generator.binomial(DRAWN, special.expit(-logit))
        table = np.asarray(1 - special.comb(wrong, K) / special.comb(DRAWN, K))
        one, difference = crossed_interval(table[0]), crossed_interval(table[1] - table[0])
        hits["one"] += holds(one, levels[0])
        hits["one cautioned"] += one.caution is not None
        hits["difference"] += holds(difference, levels[1] - levels[0])
        hits["cautioned"] += difference.caution is not None
        shown = equivalence(difference, MARGIN)
        # What has no spread was called equivalent with p = 0 before there was a guard.
        hits["t tests alone"] += not shown.p_value > 0.05 and abs(difference.mean) < MARGIN
        hits["equivalent"] += claim(difference, MARGIN).verdict == "equivalent" or shown.equivalent
    return hits


def false_equivalence(design: Design, simulations: int, seed: int = 1) -> int:
    """Simulations that call a true difference of exactly the margin equivalent: 5 % is promised at most."""
    total = math.hypot(PROBLEM_SD, ARM_SD, BOTH_SD, SEED_SD[design.effect])
    base = float(mean_rate(SKILL, total))
    shift: float = optimize.brentq(lambda x: float(mean_rate(SKILL + x, total)) - base - MARGIN, 0.0, 1.0)  # pyright: ignore
    drawn = tables(design, (SKILL, SKILL + shift), simulations, seed)
    return sum(equivalence(crossed_interval(table[1] - table[0]), MARGIN).equivalent for table, _ in drawn)


def false_rejections(design: Design, simulations: int, seed: int = 2, arms: int = 5) -> tuple[int, int]:
    """Of arms that are all equal: how often any is called worse, and one named arm, which may be the best."""
    any_lost, named_lost = 0, 0
    for table, _ in tables(design, [SKILL] * arms, simulations, seed):
        tied = tied_with_best({str(arm): rows for arm, rows in enumerate(table)}).tied
        any_lost += len(tied) < arms
        named_lost += "0" not in tied
    return any_lost, named_lost


def seeds_bands(seeds: int, correlation: float, simulations: int, ks: int = 7) -> dict[str, int]:
    """Whole curves of 7 K held, by the neighbours' correlation: pointwise t, ours, and max-|t| from the seen one."""
    generator = np.random.default_rng([3, seeds])
    root = np.linalg.cholesky(correlation ** np.abs(np.subtract.outer(np.arange(ks), np.arange(ks))))
    hits = {"pointwise": 0, "Sidak (ours)": 0, "max-t, estimated correlation": 0}
    for _ in range(simulations):
        curves = generator.normal(size=(seeds, ks)) @ root.T
        band = seeds_band(curves)
        largest = np.abs(band.mean / (band.high - band.mean) * band.critical).max()
        hits["pointwise"] += largest <= special.stdtrit(seeds - 1, 0.975)
        hits["Sidak (ours)"] += largest <= band.critical
        centred = (curves - band.mean) / curves.std(axis=0)
        drawn = np.einsum("dsr,rk->dsk", generator.normal(size=(400, seeds, seeds)), centred / math.sqrt(seeds))
        t = np.abs(drawn.mean(axis=1)) / drawn.std(axis=1, ddof=1) * math.sqrt(seeds)
        hits["max-t, estimated correlation"] += largest <= np.quantile(t.max(axis=1), 0.95)
    return hits


def problems_bands(problems: int, skill: float, simulations: int) -> dict[str, int]:
    """Whole differences of two arms' Pass@K curves held, K to 64, over problems, from their true rates."""
    generator = np.random.default_rng([4, problems])
    powers, shifts = 2 ** np.arange(7), (0.0, 0.3)
    nodes = skill + math.hypot(PROBLEM_SD, BOTH_SD) * NODES[:, None]
    failing = [WEIGHTS @ special.expit(-nodes - shift) ** powers / WEIGHTS.sum() for shift in shifts]
    hits = {"pointwise": 0, "multiplier (ours)": 0, "flagged": 0}
    for _ in range(simulations):
        hard = generator.normal(skill, PROBLEM_SD, (problems, 1))
        wrong = [special.expit(-hard - shift - generator.normal(0, BOTH_SD, hard.shape)) for shift in shifts]
        band = problems_band(wrong[0] ** powers - wrong[1] ** powers)
        error = (band.high - band.low) / 2 / band.critical
        largest = np.abs((band.mean - (failing[0] - failing[1])) / error).max()
        hits["pointwise"] += largest <= special.stdtrit(problems - 1, 0.975)
        hits["multiplier (ours)"] += largest <= band.critical
        hits["flagged"] += band.caution is not None
    return hits


def middle(rows: np.ndarray) -> np.ndarray:
    """The interquartile mean of each row."""
    return stats.trim_mean(rows, 0.25, axis=1)


def aggregates(runs: int, simulations: int, tasks: int = 6) -> dict[str, int]:
    """Interquartile means held, where a run's luck is shared by its 6 tasks: ours, and two bootstrap percentiles."""
    generator = np.random.default_rng([5, runs])
    levels = np.linspace(0.2, 0.8, tasks)
    # Symmetric about the middle of the levels, so that the true value is their middle.
    hits = {"ours (joint, t)": 0, "joint percentile": 0, "each task apart": 0}
    for _ in range(simulations):
        scores = levels + generator.normal(0, 0.03, (runs, 1)) + generator.normal(0, 0.01, (runs, tasks))
        ours = iqm_interval(scores)
        hits["ours (joint, t)"] += ours.low <= 0.5 <= ours.high
        joint = scores[generator.integers(0, runs, (400, runs))]
        apart = scores[generator.integers(0, runs, (400, runs, tasks)), np.arange(tasks)]
        for name, drawn in (("joint percentile", joint), ("each task apart", apart)):
            low, high = np.quantile(middle(drawn.reshape(len(drawn), -1)), [0.025, 0.975])
            hits[name] += low <= 0.5 <= high
    return hits


def one_verdict(problems: int, rate: float) -> tuple[float, float]:
    """Exact coverage of Wilson's interval and of Student's t where each problem has one verdict."""
    counts = np.arange(problems + 1)
    chance = stats.binom.pmf(counts, problems, rate)
    verdicts = [np.arange(problems) < count for count in counts]
    wilson = [holds(accuracy_interval(v.astype(float)), rate) for v in verdicts]
    t = [holds(problems_interval(v.astype(float)), rate) for v in verdicts]
    return float(chance @ wilson), float(chance @ t)


def row(*cells: object) -> None:
    print("|", *(f"{cell} |" for cell in cells))


def head(title: str, *columns: str) -> None:
    print(f"\n### {title}\n")
    row(*columns)
    row(*("---" for _ in columns))


MIXED = ("Satterthwaite", "generalised", "ours")
DESIGN = ("seeds", "problems", "seed effect")


def main(simulations: int) -> None:
    head("Coverage in percent, by estimand", *DESIGN, *(f"{w}: {e}" for w in ("one arm", "difference") for e in SHORT))
    for design in DESIGNS:
        row(design, *(percent(hits, simulations) for hits in coverage(design, simulations).values()))
    head("Ways to the interval for new seeds and problems", *DESIGN, "ours", *TRIED, "t over seeds")
    for design in DESIGNS:
        found = alternatives(design, simulations).values()
        row(design, *(f"{100 * hits / simulations:.1f} ({width:.2f})" for hits, width in found))
    head("Normal data, new seeds and problems", "seeds", "seeds' share of the variance", "interaction", *MIXED)
    for seeds in (2, 3, 5):
        for interaction in (0.1, 0.6):
            for share in (0.0, 0.25, 0.75, 1.0):
                found = mixed(seeds, share, interaction, simulations).values()
                row(seeds, share, interaction, *(percent(hits, simulations) for hits in found))
    decisions(simulations)


def decisions(simulations: int) -> None:
    head(f"Called equivalent at a true difference of {100 * MARGIN:g} points", *DESIGN, "percent (5 promised at most)")
    for design in DESIGNS:
        row(design, percent(false_equivalence(design, simulations), simulations))
    columns = ("one arm covered", "cautioned", "difference covered", "cautioned", "t tests alone", "called equivalent")
    head(f"Nearly saturated Pass@{K}", "seeds", "problems", "true values", *columns)
    for seeds, problems, levels in SATURATED:
        found = saturated(seeds, problems, levels, simulations).values()
        row(seeds, f"{problems:,}", "{:.3f}, {:.3f}".format(*levels), *(percent(hits, simulations) for hits in found))
    fewer = simulations // 5
    head("Five equal arms", *DESIGN, "any called worse than the best (5 promised)", "the true best lost")
    for design in DESIGNS:
        if design.problems == 500:
            row(design, *(percent(hits, fewer) for hits in false_rejections(design, fewer)))
    head(
        "Whole curves of 7 K over seeds",
        "seeds",
        "correlation of neighbours",
        "pointwise",
        "ours",
        "max-t from the seeds' own correlation",
    )
    for seeds in (3, 5, 10):
        for correlation in (0.5, 0.95):
            found = seeds_bands(seeds, correlation, fewer).values()
            row(seeds, correlation, *(percent(hits, fewer) for hits in found))
    head(
        "Whole curves of 7 K over problems", "problems", "mean accuracy", "pointwise", "ours", "flagged with a caution"
    )
    for problems in (30, 500):
        for skill in (SKILL, -1.5):
            found = problems_bands(problems, skill, 400).values()
            row(
                problems,
                f"{mean_rate(skill, math.hypot(PROBLEM_SD, BOTH_SD)):.2f}",
                *(percent(hits, 400) for hits in found),
            )
    head("Interquartile mean of 6 tasks", "seeds", "ours", "joint percentile bootstrap", "each task resampled apart")
    for runs in (3, 5, 10):
        row(runs, *(percent(hits, 400) for hits in aggregates(runs, 400).values()))
    head("One verdict a problem (exact)", "problems", "rate", "Wilson", "Student's t")
    for problems in (30, 500):
        for rate in (0.05, 0.5, 0.9):
            row(problems, rate, *(f"{100 * share:.1f}" for share in one_verdict(problems, rate)))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
