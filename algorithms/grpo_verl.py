"""GRPO as verl runs it by default: a token mean, a second clip on negative advantages, no KL term.

Sheng et al., verl 0.8, arXiv:2409.19256; the paper of the objective is arXiv:2402.03300.
Deviations: groups of one have advantage 0, where verl takes the raw reward; the token mean is global, as in verl's
newer engine path.
"""

from algorithms.axes.baseline import GroupStandardised
from algorithms.axes.penalty import NoPenalty
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.reduction import TokenMean
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping
from algorithms.axes.surrogate import DualClip
from algorithms.axes.value import NoCritic

objective = PolicyGradient(
    shaping=NoShaping(),
    selection=KeepAll(),
    advantage=GroupStandardised(ddof=1, epsilon=1e-6),
    surrogate=DualClip(low=0.2, high=0.2, cap=3.0),
    penalty=NoPenalty(),
    reduction=TokenMean(),
    value=NoCritic(),
)
sources = {
    "shaping": "verl 0.8: none",
    "selection": "verl 0.8: every group",
    "advantage": "verl 0.8: adv_estimator = grpo",
    "advantage.ddof": "verl 0.8: torch's default",
    "advantage.epsilon": "verl 0.8: 1e-6",
    "surrogate": "verl 0.8: policy_loss.loss_mode = vanilla, after 1912.09729",
    "surrogate.low": "verl 0.8: clip_ratio = 0.2",
    "surrogate.high": "verl 0.8: clip_ratio = 0.2",
    "surrogate.cap": "verl 0.8: clip_ratio_c = 3.0",
    "penalty": "verl 0.8: use_kl_loss = False",
    "reduction": "verl 0.8: loss_agg_mode = token-mean",
    "value": "verl 0.8: none",
}
