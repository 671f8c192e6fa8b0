"""Pass@K training: the advantage of the best of k, so that a prompt solved by one sample in k counts as solved.

Chen et al. 2025, arXiv:2508.10751.
Deviations: none in the advantage, which is the paper's closed form for rewards 0 and 1 and its extension to any reward.
"""

from algorithms.axes.baseline import PassAtK
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
    advantage=PassAtK(k=4),
    surrogate=Clip(low=0.2, high=0.28),
    penalty=NoPenalty(),
    reduction=TokenMean(),
    value=NoCritic(),
)
sources = {
    "shaping": "2508.10751: the reward as it is",
    "selection": "2508.10751: every group is used",
    "advantage": "2508.10751, Eq. 11-15 and appendix B",
    "advantage.k": "2508.10751, section 3.4: 4, the smallest of 4, 8 and 16 tried",
    "surrogate": "2508.10751, appendix A.2: DAPO's clip",
    "surrogate.low": "2508.10751, appendix A.2: 0.2",
    "surrogate.high": "2508.10751, appendix A.2: 0.28",
    "penalty": "2508.10751, appendix A.2: no KL term",
    "reduction": "2508.10751, section 2.1: DAPO's token mean",
    "value": "2508.10751: no value model",
}
