"""REINFORCE: the score function weighted by the completion's return minus the rollout's mean, on-policy.

Williams 1992; for language models as the baseline of Ahmadian et al. 2024, arXiv:2402.14740.
Deviations: the baseline is the rollout's mean, not that of all past rewards. One update per rollout, because no ratio
corrects for more.
"""

from algorithms.axes.penalty import NoPenalty
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.ratio import NoRatio
from algorithms.axes.reduction import SequenceSum
from algorithms.axes.returns import Returns
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping
from algorithms.axes.surrogate import Reinforce
from algorithms.axes.value import NoCritic

objective = PolicyGradient(
    shaping=NoShaping(),
    selection=KeepAll(),
    advantage=Returns(gamma=1.0, baseline="batch_mean"),
    ratio=NoRatio(),
    surrogate=Reinforce(),
    penalty=NoPenalty(),
    reduction=SequenceSum(),
    value=NoCritic(),
)
sources = {
    "shaping": "2402.14740, Eq. 6: the reward as it is",
    "selection": "2402.14740, Eq. 6: every sample is used",
    "advantage": "2402.14740, Eq. 7: return minus a baseline",
    "advantage.gamma": "2402.14740, Eq. 6: a completion is one action, so nothing is discounted",
    "advantage.baseline": "deviation: the rollout's mean; the mean of all past rewards in 2402.14740, Eq. 8",
    "ratio": "2402.14740, Eq. 6: none",
    "surrogate": "2402.14740, Eq. 6: the score function",
    "penalty": "our choice: none, so that no reference is held",
    "reduction": "2402.14740, Eq. 6: log-probability of the whole completion",
    "value": "2402.14740, Eq. 6: no value model",
}
