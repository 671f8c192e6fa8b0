"""DAPO as written: the token mean is taken within each group, because Eq. 8 has its denominator inside the expectation.

Yu et al. 2025, arXiv:2503.14476.
Deviations: the overlong buffer is a share of the completion budget; rewards are 0 and 1 where the paper has -1 and 1,
so the penalty's factor is halved; truncated completions are punished but not filtered out.
"""

from algorithms.axes.baseline import GroupStandardised
from algorithms.axes.penalty import NoPenalty
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.reduction import GroupTokenMean
from algorithms.axes.selection import DropUniformGroups
from algorithms.axes.shaping import SoftOverlong
from algorithms.axes.surrogate import Clip
from algorithms.axes.value import NoCritic

objective = PolicyGradient(
    shaping=SoftOverlong(buffer=0.2, factor=0.5),
    selection=DropUniformGroups(max_rounds=10, on_exhausted="error", surplus="discard"),
    advantage=GroupStandardised(ddof=1, epsilon=1e-4),
    surrogate=Clip(low=0.2, high=0.28),
    penalty=NoPenalty(),
    reduction=GroupTokenMean(),
    value=NoCritic(),
)
sources = {
    "shaping": "2503.14476, section 3.4, Eq. 13",
    "shaping.buffer": "2503.14476, section 4.1: 4096 of 20480 tokens",
    "shaping.factor": "2503.14476, Eq. 13: 1 on rewards of +-1, hence 0.5 on rewards of 0 and 1",
    "selection": "2503.14476, Eq. 11",
    "selection.max_rounds": "not stated; authors' recipe in verl: max_num_gen_batches = 10",
    "selection.on_exhausted": "not stated; authors' recipe in verl: an error",
    "selection.surplus": "not stated; authors' recipe in verl: discarded",
    "advantage": "2503.14476, Eq. 9",
    "advantage.ddof": "not stated; torch's default",
    "advantage.epsilon": "not stated; TRL 1.16",
    "surrogate": "2503.14476, Eq. 8 and 10",
    "surrogate.low": "2503.14476, section 4.1: 0.2",
    "surrogate.high": "2503.14476, section 4.1: 0.28",
    "penalty": "2503.14476, section 2.3",
    "reduction": "2503.14476, Eq. 8: 1 / sum of |o_i| of the group, inside the expectation over prompts",
    "value": "2503.14476, section 2.2: no value model",
}
