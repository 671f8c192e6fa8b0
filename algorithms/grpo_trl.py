"""GRPO as TRL 1.16 calls it: its defaults are a token mean over the step and no KL term, not the paper's GRPO.

von Werra et al., TRL 1.16, GRPOConfig; the paper is arXiv:2402.03300.
Deviations: exact token counts of each optimizer step, where TRL divides by the mean count if a rollout serves several
steps; no correction for vLLM's log-probabilities, which TRL has on by default where vLLM samples.
"""

from algorithms.axes.baseline import GroupStandardised
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
    advantage=GroupStandardised(ddof=1, epsilon=1e-4),
    surrogate=Clip(low=0.2, high=0.2),
    penalty=NoPenalty(),
    reduction=TokenMean(),
    value=NoCritic(),
)
sources = {
    "shaping": "TRL 1.16: none",
    "selection": "TRL 1.16: every group",
    "advantage": "TRL 1.16: scale_rewards = group",
    "advantage.ddof": "TRL 1.16: nanstd with Bessel's correction",
    "advantage.epsilon": "TRL 1.16: 1e-4",
    "surrogate": "TRL 1.16: importance_sampling_level = token",
    "surrogate.low": "TRL 1.16: epsilon = 0.2",
    "surrogate.high": "TRL 1.16: epsilon_high = epsilon",
    "penalty": "TRL 1.16: beta = 0",
    "reduction": "TRL 1.16: loss_type = dapo",
    "value": "TRL 1.16: none",
}
