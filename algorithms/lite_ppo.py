"""Lite PPO: the group's mean as baseline, the whole rollout's standard deviation as scale, and a token-level mean.

Liu et al. 2025, arXiv:2508.08221.
Deviations: sampling is the run's; the paper samples at temperature .99 with top-p and top-k.
"""

from algorithms.axes.baseline import BatchScaled
from algorithms.axes.penalty import NoPenalty
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.reduction import TokenMean
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping
from algorithms.axes.surrogate import Clip
from algorithms.axes.value import NoCritic

objective = PolicyGradient(
    shaping=NoShaping(),
    selection=KeepAll(),
    advantage=BatchScaled(ddof=1, epsilon=1e-4),
    surrogate=Clip(low=0.2, high=0.2),
    penalty=NoPenalty(),
    reduction=TokenMean(),
    value=NoCritic(),
)
sources = {
    "shaping": "2508.08221: the reward as it is",
    "selection": "2508.08221: every group is used",
    "advantage": "2508.08221: group mean, batch std",
    "advantage.ddof": "not stated; torch's default",
    "advantage.epsilon": "not stated; TRL 1.16",
    "surrogate": "2508.08221: vanilla PPO loss",
    "surrogate.low": "authors' code (ROLL, pg_clip): 0.2",
    "surrogate.high": "authors' code (ROLL, pg_clip): 0.2",
    "penalty": "2508.08221: no KL term",
    "reduction": "2508.08221: token-level",
    "value": "2508.08221: critic-free",
}
