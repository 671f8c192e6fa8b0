"""Ratio: how far the policy has moved since the rollout, per token or per completion."""

from typing import ClassVar

from jaxtyping import Bool, Float
from torch import Tensor

from algorithms.axes.knobs import knobs
from algorithms.axes.masked import masked

LARGEST_LOG_RATIO = 20.0
"""Log-ratios are held within +-20, so that a stray token cannot overflow."""


def held_exp(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """exp of a log-ratio that is held within +-20."""
    return log_ratio.clamp(min=-LARGEST_LOG_RATIO, max=LARGEST_LOG_RATIO).exp()


def _over_tokens(per_row: Float[Tensor, "batch"], mask: Bool[Tensor, "batch tokens"]) -> Float[Tensor, "batch tokens"]:
    return per_row[:, None].expand(mask.shape)


@knobs
class TokenRatio:
    """rho_it = pi / pi_old of each token (`token`)."""

    is_ratio: ClassVar[bool] = True

    def __call__(
        self,
        logp: Float[Tensor, "batch tokens"],
        old_logp: Float[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"]:
        return held_exp(masked(logp - old_logp, mask))

    def formula(self) -> str:
        return "rho = pi / pi_old, per token"


@knobs
class SequenceRatio:
    """s_i = exp(mean_t log(pi / pi_old)), one ratio a completion; gradient through the mean (GSPO; `seq_geo`)."""

    is_ratio: ClassVar[bool] = True

    def __call__(
        self,
        logp: Float[Tensor, "batch tokens"],
        old_logp: Float[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"]:
        return _over_tokens(held_exp(_mean(logp - old_logp, mask)), mask)

    def formula(self) -> str:
        return "rho = (pi / pi_old)^(1 / L), per completion: the geometric mean over its tokens"


@knobs
class SequenceTokenRatio:
    """s_it = sg[s_i] pi / sg[pi]: the value of `SequenceRatio`, the gradient of each token (GSPO-token; `seq_geo_sg`).

    Equal to `SequenceRatio` where the advantage is the same for all tokens of a completion.
    """

    is_ratio: ClassVar[bool] = True

    def __call__(
        self,
        logp: Float[Tensor, "batch tokens"],
        old_logp: Float[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"]:
        per_row = held_exp(_mean(logp - old_logp, mask)).detach()
        own = masked(logp - logp.detach(), mask).exp()
        return _over_tokens(per_row, mask) * own

    def formula(self) -> str:
        return "rho = sg[(pi / pi_old)^(1 / L) of the completion] * pi / sg[pi], per token"


@knobs
class SequenceProductRatio:
    """prod_t pi / pi_old, one ratio a completion (RLOO; `seq_prod`).

    Long completions leave every trust region soon: the logarithm grows with the number of tokens.
    """

    is_ratio: ClassVar[bool] = True

    def __call__(
        self,
        logp: Float[Tensor, "batch tokens"],
        old_logp: Float[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"]:
        return _over_tokens(held_exp(masked(logp - old_logp, mask).sum(dim=1)), mask)

    def formula(self) -> str:
        return "rho = product over the completion's tokens of pi / pi_old, per completion"


@knobs
class NoRatio:
    """No importance ratio: the surrogate weighs log-probabilities, so the rollout must be the present policy's."""

    is_ratio: ClassVar[bool] = False

    def __call__(
        self,
        logp: Float[Tensor, "batch tokens"],
        old_logp: Float[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch tokens"],
    ) -> Float[Tensor, "batch tokens"]:
        """The token ratio without a gradient: it is watched, and enters no loss."""
        return held_exp(masked(logp - old_logp, mask)).detach()

    def formula(self) -> str:
        return "none"


def _mean(values: Float[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"]) -> Float[Tensor, "batch"]:
    return masked(values, mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)


Ratio = TokenRatio | SequenceRatio | SequenceTokenRatio | SequenceProductRatio | NoRatio
