"""CISPO: clip the importance weight, not the token: every token keeps its gradient, only its weight is held.

MiniMax 2025 (MiniMax-M1), arXiv:2506.13585.
Deviations: the paper does not publish its bound; 1 + 4 is ScaleRL's. Dynamic sampling and length penalty are DAPO's,
with the constants of `dapo`.
"""

from algorithms.axes.baseline import GroupStandardised
from algorithms.axes.penalty import NoPenalty
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.reduction import TokenMean
from algorithms.axes.selection import DropUniformGroups
from algorithms.axes.shaping import SoftOverlong
from algorithms.axes.surrogate import Cispo
from algorithms.axes.value import NoCritic

objective = PolicyGradient(
    shaping=SoftOverlong(buffer=0.2, factor=0.5),
    selection=DropUniformGroups(max_rounds=10, on_exhausted="error", surplus="discard"),
    advantage=GroupStandardised(ddof=1, epsilon=1e-4),
    surrogate=Cispo(low=None, high=4.0),
    penalty=NoPenalty(),
    reduction=TokenMean(),
    value=NoCritic(),
)
sources = {
    "shaping": "2506.13585, section 3.1: DAPO's length penalty",
    "shaping.buffer": "2503.14476, section 4.1: 4096 of 20480 tokens",
    "shaping.factor": "2503.14476, Eq. 13: 1 on rewards of +-1, hence 0.5 on rewards of 0 and 1",
    "selection": "2506.13585, section 3.1: DAPO's dynamic sampling",
    "selection.max_rounds": "authors' recipe of DAPO in verl: max_num_gen_batches = 10",
    "selection.on_exhausted": "authors' recipe of DAPO in verl: an error",
    "selection.surplus": "authors' recipe of DAPO in verl: discarded",
    "advantage": "2506.13585, Eq. 2",
    "advantage.ddof": "not stated; torch's default",
    "advantage.epsilon": "not stated; TRL 1.16",
    "surrogate": "2506.13585, Eq. 4 and 5",
    "surrogate.low": "2506.13585, section 3.1: no lower bound",
    "surrogate.high": "not stated; 2510.13786 (ScaleRL): a cap of 5",
    "penalty": "2506.13585, section 3.1: no KL term",
    "reduction": "2506.13585, Eq. 4: over all tokens; taken over the step",
    "value": "2506.13585, section 3.1: no value model",
}
