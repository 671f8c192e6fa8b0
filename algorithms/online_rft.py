"""Online RFT: maximum likelihood of the present policy's correct samples; the wrong ones leave the loss.

Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300, section 5.2.1.
Deviations: the mean is taken over accepted completions, not over all sampled ones. One update per rollout, on-policy.
"""

from algorithms.axes.baseline import Accepted
from algorithms.axes.penalty import NoPenalty
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.ratio import NoRatio
from algorithms.axes.reduction import SequenceMean
from algorithms.axes.selection import KeepAll
from algorithms.axes.shaping import NoShaping
from algorithms.axes.surrogate import Reinforce
from algorithms.axes.value import NoCritic

objective = PolicyGradient(
    shaping=NoShaping(),
    selection=KeepAll(),
    advantage=Accepted(),
    ratio=NoRatio(),
    surrogate=Reinforce(),
    penalty=NoPenalty(),
    reduction=SequenceMean(),
    value=NoCritic(),
)
sources = {
    "shaping": "2402.03300, appendix A.1.3: none",
    "selection": "2402.03300, appendix A.1.3: every correct sample",
    "advantage": "2402.03300, Eq. 10-11: the gradient coefficient is 1 for correct answers, else 0",
    "ratio": "2402.03300, appendix A.1.3: on-policy",
    "surrogate": "2402.03300, appendix A.1.3: the log-likelihood",
    "penalty": "2402.03300, appendix A.1.3: none",
    "reduction": "2402.03300, appendix A.1.3: 1/|o| sum over tokens",
    "value": "2402.03300, appendix A.1.3: no value model",
}
