"""GSPO: GRPO with one importance ratio a completion, the geometric mean of its tokens' ratios, and a clip to match.

Zheng et al. 2025, arXiv:2507.18071.
Deviations: none. With one update per rollout the ratio is 1 and this is GRPO without its KL term.
"""

from algorithms.axes.baseline import GroupStandardised
from algorithms.axes.penalty import NoPenalty
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.ratio import SequenceRatio
from algorithms.axes.reduction import SequenceMean
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping
from algorithms.axes.surrogate import Clip
from algorithms.axes.value import NoCritic

objective = PolicyGradient(
    shaping=NoShaping(),
    selection=KeepAll(),
    advantage=GroupStandardised(ddof=1, epsilon=1e-4),
    ratio=SequenceRatio(),
    surrogate=Clip(low=3e-4, high=4e-4),
    penalty=NoPenalty(),
    reduction=SequenceMean(),
    value=NoCritic(),
)
sources = {
    "shaping": "2507.18071, section 4.1: the reward as it is",
    "selection": "2507.18071, section 4.1: every group is used",
    "advantage": "2507.18071, Eq. 6",
    "advantage.ddof": "not stated; torch's default",
    "advantage.epsilon": "not stated; TRL 1.16",
    "ratio": "2507.18071, Eq. 7",
    "surrogate": "2507.18071, Eq. 5",
    "surrogate.low": "2507.18071, section 5.1: 3e-4",
    "surrogate.high": "2507.18071, section 5.1: 4e-4",
    "penalty": "2507.18071, section 2: the KL term is left out",
    "reduction": "2507.18071, Eq. 5: 1/G sum over completions",
    "value": "2507.18071, section 2: no value model",
}
