"""Step metrics: how far the policy of an optimizer step has moved from the rollout's, as sums that add up."""

from jaxtyping import Bool, Float
from torch import Tensor

from algorithms.axes.masked import Summed, masked, masked_mean, masked_moments
from algorithms.axes.penalty import kl_estimate
from algorithms.axes.ratio import held_exp


def movement(
    ratio: Float[Tensor, "batch tokens"],
    logp: Float[Tensor, "batch tokens"],
    old_logp: Float[Tensor, "batch tokens"],
    mask: Bool[Tensor, "batch tokens"],
) -> dict[str, Summed]:
    """Means, a variance and effective sample sizes of a microbatch; none of the tensors may carry a gradient.

    `ratio/*` is of the ratio that the loss uses, one number a token also where it is taken per completion. `ess/*` is
    of the plain weights pi / pi_old, per token and as products per completion, whatever the loss uses.
    """
    log_ratio = masked(logp - old_logp, mask)
    token, sequence = held_exp(log_ratio), held_exp(log_ratio.double().sum(dim=1))
    return {
        "ratio/mean": masked_mean(ratio, mask),
        "ratio/var": masked_moments(ratio, mask, "variance"),
        "kl/old_k1": masked_mean(kl_estimate(old_logp, logp, "k1"), mask),
        "kl/old_k3": masked_mean(kl_estimate(old_logp, logp, "k3"), mask),
        "ess/update_token": masked_moments(token, mask, "effective_share"),
        "ess/update_seq": masked_moments(sequence, mask.any(dim=1), "effective_share"),
    }
