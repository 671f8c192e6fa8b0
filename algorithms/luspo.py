"""LUSPO: GSPO with each completion's loss weighted by its length, so that long completions are not under-weighted.

2026, arXiv:2602.05261.
Deviations: none.
"""

from algorithms.axes.baseline import GroupStandardised
from algorithms.axes.penalty import NoPenalty
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.ratio import SequenceRatio
from algorithms.axes.reduction import SequenceSum
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping
from algorithms.axes.surrogate import Clip
from algorithms.axes.value import NoCritic

objective = PolicyGradient(
    shaping=NoShaping(),
    selection=KeepAll(),
    advantage=GroupStandardised(ddof=1, epsilon=1e-4),
    ratio=SequenceRatio(),
    surrogate=Clip(low=2e-3, high=2.5e-3),
    penalty=NoPenalty(),
    reduction=SequenceSum(),
    value=NoCritic(),
)
sources = {
    "shaping": "2602.05261: the reward as it is",
    "selection": "2602.05261: every group is used",
    "advantage": "2602.05261: as in GRPO",
    "advantage.ddof": "not stated; torch's default",
    "advantage.epsilon": "not stated; TRL 1.16",
    "ratio": "2602.05261: GSPO's",
    "surrogate": "2602.05261: GSPO's clip",
    "surrogate.low": "2602.05261, section 5.1, as TRL 1.16 quotes it: 2e-3",
    "surrogate.high": "2602.05261, section 5.1, as TRL 1.16 quotes it: 2.5e-3",
    "penalty": "2602.05261: no KL term",
    "reduction": "2602.05261: times the length, the sum over a completion's tokens",
    "value": "2602.05261: no value model",
}
