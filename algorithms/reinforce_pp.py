"""REINFORCE++: PPO without a critic: rewards to come with a KL term per token, whitened over the whole rollout.

Hu et al. 2025, arXiv:2501.03262.
Deviations: the mean is over tokens, as in code, where Eq. 1 has one for each completion.
"""

from algorithms.axes.penalty import RewardKL
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.reduction import TokenMean
from algorithms.axes.returns import WhitenedReturns
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping
from algorithms.axes.surrogate import Clip
from algorithms.axes.value import NoCritic

objective = PolicyGradient(
    shaping=NoShaping(),
    selection=KeepAll(),
    advantage=WhitenedReturns(gamma=1.0),
    surrogate=Clip(low=0.2, high=0.2),
    penalty=RewardKL(coefficient=0.001, estimator="k1"),
    reduction=TokenMean(),
    value=NoCritic(),
)
sources = {
    "shaping": "2501.03262: the reward as it is",
    "selection": "2501.03262: every sample is used",
    "advantage": "2501.03262, Eq. 4 and 5: normalised over the global batch",
    "advantage.gamma": "2501.03262v1, Table 1: 1",
    "surrogate": "2501.03262, Eq. 1: PPO's clip",
    "surrogate.low": "2501.03262v1, Table 1: 0.2",
    "surrogate.high": "2501.03262v1, Table 1: 0.2",
    "penalty": "2501.03262, Eq. 4: KL per token in the reward",
    "penalty.coefficient": "2501.03262v1, Table 1: 0.001 for mathematics (0.01 for general tasks)",
    "penalty.estimator": "2501.03262, Eq. 4: log(pi_old / reference)",
    "reduction": "deviation: over tokens, as verl 0.8; 1/|o| in 2501.03262, Eq. 1",
    "value": "2501.03262: no value model",
}
