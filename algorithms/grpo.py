"""GRPO: clipped policy gradient on group-standardised rewards, with a KL term in the loss and no critic.

Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300.
Deviations: one outer iteration, so the reference stays the starting policy. The paper gives neither the clip, nor the
standard deviation's degrees of freedom, nor what is added to it: 0.2 is PPO's, ddof 1 is torch's and 1e-4 is TRL's.
"""

from algorithms.axes.baseline import GroupStandardised
from algorithms.axes.penalty import LossKL
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.reduction import SequenceMean
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping
from algorithms.axes.surrogate import Clip
from algorithms.axes.value import NoCritic

objective = PolicyGradient(
    shaping=NoShaping(),
    selection=KeepAll(),
    advantage=GroupStandardised(ddof=1, epsilon=1e-4),
    surrogate=Clip(low=0.2, high=0.2),
    penalty=LossKL(coefficient=0.04, estimator="k3", weight="none"),
    reduction=SequenceMean(),
    value=NoCritic(),
)
sources = {
    "shaping": "2402.03300, section 4.1.2: the reward as it is",
    "selection": "2402.03300, Algorithm 1: every group is used",
    "advantage": "2402.03300, section 4.1.2: (r - mean) / std of the group",
    "advantage.ddof": "not stated; torch's default",
    "advantage.epsilon": "not stated; TRL 1.16",
    "surrogate": "2402.03300, Eq. 3",
    "surrogate.low": "not stated; PPO, 1707.06347, Table 1",
    "surrogate.high": "not stated; PPO, 1707.06347, Table 1",
    "penalty": "2402.03300, Eq. 3",
    "penalty.coefficient": "2402.03300, section 4.2: beta = 0.04",
    "penalty.estimator": "2402.03300, Eq. 4",
    "penalty.weight": "2402.03300, Eq. 3: none",
    "reduction": "2402.03300, Eq. 3: 1/G sum 1/|o_i| sum",
    "value": "2402.03300, section 4.1: no value model",
}
