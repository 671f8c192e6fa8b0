"""RLOO: REINFORCE on whole completions with the mean reward of the group's other completions as baseline.

Ahmadian et al. 2024, arXiv:2402.14740.
Deviations: the paper has no ratio and no clip; here, as in TRL, the completion's ratio is clipped like PPO's,
which is inert with one update per rollout.
"""

from algorithms.axes.baseline import LeaveOneOut
from algorithms.axes.penalty import SequenceRewardKL
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.ratio import SequenceProductRatio
from algorithms.axes.reduction import SequenceMean
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping
from algorithms.axes.surrogate import Clip
from algorithms.axes.value import NoCritic

objective = PolicyGradient(
    shaping=NoShaping(),
    selection=KeepAll(),
    advantage=LeaveOneOut(),
    ratio=SequenceProductRatio(),
    surrogate=Clip(low=0.2, high=0.2),
    penalty=SequenceRewardKL(coefficient=0.03),
    reduction=SequenceMean(),
    value=NoCritic(),
)
sources = {
    "shaping": "2402.14740, Eq. 3: the reward as it is",
    "selection": "2402.14740, section 2.3: every sample is used",
    "advantage": "2402.14740, section 2.3: leave-one-out",
    "ratio": "deviation: TRL 1.16; 2402.14740 has none",
    "surrogate": "deviation: TRL 1.16; 2402.14740 has REINFORCE",
    "surrogate.low": "TRL 1.16: 0.2",
    "surrogate.high": "TRL 1.16: 0.2",
    "penalty": "2402.14740, Eq. 3: KL in the completion's reward",
    "penalty.coefficient": "2402.14740, appendix C: beta = 0.03",
    "reduction": "2402.14740, section 2.3: the mean over completions, a completion is one action",
    "value": "2402.14740, section 2.3: no value model",
}
