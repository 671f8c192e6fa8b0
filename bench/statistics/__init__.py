"""Intervals and tests for accuracies, each saying what it generalises to: problems, training seeds, or both.

An interval answers one question, its estimand, and covers less than it promises for another. Between these three the
answer differs by more than any choice of formula, so every result carries its estimand for the caption:

    PROBLEMS              these checkpoints, on new problems like these      problems_interval, paired_difference
    SEEDS                 new training seeds, on these problems              t_interval over one value a seed
    SEEDS_AND_PROBLEMS    new training seeds, on new problems                crossed_interval, crossed_difference

`interval_for` picks the default of each; how often each covers is measured in `docs/statistics.md`. Undefined is NaN:
one seed has no interval over seeds, equal values have no interval at all (no spread among a few does not make a mean
certain), and a NaN among the values (Pass@K where a problem has too few samples) makes the result NaN. Whatever draws
random numbers seeds its generator with the content of its data.
"""

from bench.statistics.aggregate import (
    AggregateInterval,
    improvement_interval,
    iqm,
    iqm_interval,
    performance_profile,
    probability_of_improvement,
    profile_intervals,
)
from bench.statistics.bands import Band, problems_band, seeds_band
from bench.statistics.carried import FEW, num_carrying
from bench.statistics.crossed import crossed_interval, crossed_p_value
from bench.statistics.crossover import Crossover, crossover
from bench.statistics.default import interval_for
from bench.statistics.equivalence import Claim, Equivalence, claim, equivalence
from bench.statistics.estimand import PROBLEMS, SEEDS, SEEDS_AND_PROBLEMS, TRIALS, caution
from bench.statistics.interval import (
    Interval,
    accuracy_interval,
    problems_interval,
    t_interval,
    t_p_value,
    wilson_interval,
)
from bench.statistics.multiplicity import TiedSet, holm, tied_with_best
from bench.statistics.paired import PairedDifference, align, crossed_difference, paired_difference
from bench.statistics.power import minimum_detectable_effect, observed_minimum_detectable, problems_needed
from bench.statistics.significance import SignificanceTest, mcnemar_test, sign_flip_test, wilcoxon_test

__all__ = [
    "FEW",
    "PROBLEMS",
    "SEEDS",
    "SEEDS_AND_PROBLEMS",
    "TRIALS",
    "AggregateInterval",
    "Band",
    "Claim",
    "Crossover",
    "Equivalence",
    "Interval",
    "PairedDifference",
    "SignificanceTest",
    "TiedSet",
    "accuracy_interval",
    "align",
    "caution",
    "claim",
    "crossed_difference",
    "crossed_interval",
    "crossed_p_value",
    "crossover",
    "equivalence",
    "holm",
    "improvement_interval",
    "interval_for",
    "iqm",
    "iqm_interval",
    "mcnemar_test",
    "minimum_detectable_effect",
    "num_carrying",
    "observed_minimum_detectable",
    "paired_difference",
    "performance_profile",
    "probability_of_improvement",
    "problems_band",
    "problems_interval",
    "problems_needed",
    "profile_intervals",
    "seeds_band",
    "sign_flip_test",
    "t_interval",
    "t_p_value",
    "tied_with_best",
    "wilcoxon_test",
    "wilson_interval",
]
