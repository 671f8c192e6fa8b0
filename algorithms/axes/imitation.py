"""The imitation family: maximum likelihood on completions that were fixed before training (SFT, rejection sampling)."""

from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from algorithms.axes.batch import Batch, LossParts, Totals
from algorithms.axes.knobs import knobs
from algorithms.axes.masked import masked_mean
from algorithms.axes.needs import Needs
from algorithms.axes.reduction import SequenceMean, TokenMean


@knobs
class GoldSolutions:
    """The task's own worked solutions, one a prompt: supervised fine-tuning. Nothing is sampled for training."""

    samples: ClassVar[bool] = False

    def formula(self) -> str:
        return "worked solutions of the prompts"


@knobs
class AcceptedSamples:
    """Correct samples of the starting policy, without repeats: offline rejection sampling (RFT).

    A completion that the budget cut is taken too if the verifier calls it correct; it teaches no end.
    """

    samples: ClassVar[bool] = True
    max_per_prompt: Annotated[int, Field(ge=1)] | None = None
    """Keeps easy prompts from dominating; null keeps every distinct correct sample."""

    def accepted(self, correct: Float[Tensor, "members"], texts: tuple[tuple[int, ...], ...]) -> list[int]:
        """Members of one group that are trained on: the first of each distinct correct completion, in order."""
        first: dict[tuple[int, ...], int] = {}
        for member, text in enumerate(texts):
            if bool(correct[member] == 1):
                first.setdefault(text, member)
        return list(first.values())[: self.max_per_prompt]

    def formula(self) -> str:
        most = "" if self.max_per_prompt is None else f", at most {self.max_per_prompt} a prompt"
        return f"distinct correct samples of the starting policy{most}"


@knobs
class Imitation:
    """reduction of -log pi over the tokens of given completions."""

    source: Annotated[GoldSolutions | AcceptedSamples, Field(discriminator="kind")]
    """Where the completions come from."""
    reduction: Annotated[SequenceMean | TokenMean, Field(discriminator="kind")]
    """How the losses of tokens become one number."""

    @property
    def needs(self) -> Needs:
        """The verifier's verdict at most; neither reference nor critic."""
        return Needs(critic=False, reference=False, groups=False, reward=False, samples=self.source.samples)

    def loss(self, batch: Batch, totals: Totals) -> LossParts:
        """A microbatch's share of the step's loss; the gradient flows through `batch.logp` alone."""
        loss = self.reduction(-batch.logp, batch, totals)
        with torch.no_grad():
            means = {"imitation/logp": masked_mean(batch.logp, batch.mask)}
        return LossParts(loss=loss, means=means, maxima={})

    def formula(self) -> dict[str, str]:
        """The formula in force, one line an axis."""
        return {"source": self.source.formula(), "reduction": f"-log pi, {self.reduction.formula()}"}
