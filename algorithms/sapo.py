"""SAPO: a soft gate on the importance ratio in place of the clip, steeper where the advantage is negative.

Gao et al. 2025, arXiv:2511.20347.
Deviations: none.
"""

from algorithms.axes.baseline import GroupStandardised
from algorithms.axes.penalty import NoPenalty
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.reduction import SequenceMean
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping
from algorithms.axes.surrogate import Sapo
from algorithms.axes.value import NoCritic

objective = PolicyGradient(
    shaping=NoShaping(),
    selection=KeepAll(),
    advantage=GroupStandardised(ddof=1, epsilon=1e-4),
    surrogate=Sapo(temperature_positive=1.0, temperature_negative=1.05),
    penalty=NoPenalty(),
    reduction=SequenceMean(),
    value=NoCritic(),
)
sources = {
    "shaping": "2511.20347, section 2: the reward as it is",
    "selection": "2511.20347, section 2: every group is used",
    "advantage": "2511.20347, section 2: as in GRPO",
    "advantage.ddof": "not stated; torch's default",
    "advantage.epsilon": "not stated; TRL 1.16",
    "surrogate": "2511.20347, Eq. 6: the soft gate",
    "surrogate.temperature_positive": "2511.20347, section 5.1: 1.0",
    "surrogate.temperature_negative": "2511.20347, section 5.1: 1.05",
    "penalty": "2511.20347, Eq. 5: no KL term",
    "reduction": "2511.20347, Eq. 5: 1/G sum 1/|y_i| sum",
    "value": "2511.20347: no value model",
}
