"""Dr. GRPO: GRPO without its two biases, neither the division by the group's std nor by each completion's length.

Liu et al. 2025, arXiv:2503.20783.
Deviations: none; the constant length is the run's completion budget, as in the authors' code.
"""

from algorithms.axes.baseline import GroupCentred
from algorithms.axes.penalty import NoPenalty
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.reduction import ConstantLength
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping
from algorithms.axes.surrogate import Clip
from algorithms.axes.value import NoCritic

objective = PolicyGradient(
    shaping=NoShaping(),
    selection=KeepAll(),
    advantage=GroupCentred(),
    surrogate=Clip(low=0.2, high=0.2),
    penalty=NoPenalty(),
    reduction=ConstantLength(),
    value=NoCritic(),
)
sources = {
    "shaping": "2503.20783, section 3.2: the reward as it is",
    "selection": "2503.20783, section 3.2: every group is used",
    "advantage": "2503.20783, section 3.2: r - mean of the group",
    "surrogate": "2503.20783, section 3.2: PPO's clipped objective",
    "surrogate.low": "authors' code: cliprange 0.2",
    "surrogate.high": "authors' code: cliprange 0.2",
    "penalty": "2503.20783, authors' script: beta = 0",
    "reduction": "2503.20783, section 3.2 and authors' code: a constant, the generation budget",
    "value": "2503.20783, section 3: no value model",
}
