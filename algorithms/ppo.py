"""PPO: clipped policy gradient on a critic's advantages, with a per-token KL penalty in the reward.

Schulman et al. 2017, arXiv:1707.06347; for language models Ouyang et al. 2022 (InstructGPT), arXiv:2203.02155.
Deviations: lambda is 1, not .95, because a verifier's reward comes once at the end and is exact; the critic is a model
of its own with its own optimizer, so Eq. 9's joint loss has no c_1; no entropy bonus and no pretraining gradient.
"""

from algorithms.axes.penalty import RewardKL
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.reduction import TokenMean
from algorithms.axes.returns import GAE
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping
from algorithms.axes.surrogate import Clip
from algorithms.axes.value import ValueLoss

objective = PolicyGradient(
    shaping=NoShaping(),
    selection=KeepAll(),
    advantage=GAE(gamma=1.0, lam=1.0, whiten=True),
    surrogate=Clip(low=0.2, high=0.2),
    penalty=RewardKL(coefficient=0.02, estimator="k1"),
    reduction=TokenMean(),
    value=ValueLoss(clip=0.2),
)
sources = {
    "shaping": "2203.02155: the reward model's score is used as it is",
    "selection": "1707.06347, Algorithm 1: every sample is used",
    "advantage": "GAE: 1506.02438, Eq. 16 and 1707.06347, Eq. 11-12",
    "advantage.gamma": "2203.02155, appendix C.4: no discount",
    "advantage.lam": "deviation: Monte Carlo returns for a reward that comes once; .95 in 1707.06347, Table 3",
    "advantage.whiten": "2403.17031: advantages are whitened",
    "surrogate": "1707.06347, Eq. 7",
    "surrogate.low": "1707.06347, Table 1 and 2203.02155, appendix C.4: 0.2",
    "surrogate.high": "1707.06347, Table 1 and 2203.02155, appendix C.4: 0.2",
    "penalty": "1909.08593, Eq. 2 and 2203.02155, Eq. 2",
    "penalty.coefficient": "2203.02155, appendix C.4: beta = 0.02",
    "penalty.estimator": "2203.02155, Eq. 2: log(pi / reference)",
    "reduction": "1707.06347, Eq. 7: expectation over time steps",
    "value": "1707.06347, Eq. 9: squared error; clipped form and 1/2 as in TRL 1.12, after 2403.17031",
    "value.clip": "not stated; TRL 1.12, after 2403.17031: 0.2",
}
