"""The preference family: pairs of graded samples and a loss on them (DPO and its relatives)."""

from typing import Annotated

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from algorithms.axes.batch import LossParts, PairBatch
from algorithms.axes.knobs import knobs
from algorithms.axes.masked import Mean
from algorithms.axes.needs import Needs


@knobs
class Sigmoid:
    """-log sigmoid(beta * margin): DPO's loss (2305.18290, Eq. 7)."""

    beta: Annotated[float, Field(gt=0)]
    """Strength of the pull towards the reference."""

    def __call__(self, margin: Float[Tensor, "pairs"]) -> Float[Tensor, "pairs"]:
        """`margin`: difference of the summed log-ratios to the reference, chosen minus rejected."""
        return -logsigmoid(self.beta * margin)

    def formula(self) -> str:
        return f"-log sigmoid({self.beta:g} * (log-ratio of chosen - log-ratio of rejected)), log-probabilities summed"


@knobs
class GradedPairs:
    """Pairs from graded samples of the starting policy: reward above against below the mean of the usable samples.

    For a 0/1 reward this is correct against wrong. A tie never makes a pair. Both sides must have ended by themselves
    unless told otherwise: a truncated reject teaches "stop", not "be right". Both lists are shuffled and zipped, the
    shorter one cycled (IRPO, 2404.19733, footnote 1); identical texts enter once.
    """

    max_pairs_per_prompt: Annotated[int, Field(ge=1)] = 8
    """Keeps easy prompts from dominating; half the group size matches an online run's gradient tokens."""
    require_termination: bool = True
    """Leave truncated completions out of pairs."""

    def split(
        self, reward: Float[Tensor, "members"], terminated: Bool[Tensor, "members"]
    ) -> tuple[list[int], list[int]]:
        """Member indices fit for chosen and for rejected. Unscorable members (not finite) are neither."""
        usable = {
            member: float(reward[member])
            for member in range(len(reward))
            if reward[member].isfinite() and (terminated[member] or not self.require_termination)
        }
        mean = sum(usable.values()) / max(len(usable), 1)
        slack = 1e-6 * (1 + abs(mean))
        chosen = [member for member, value in usable.items() if value > mean + slack]
        rejected = [member for member, value in usable.items() if value < mean - slack]
        return chosen, rejected

    def formula(self) -> str:
        ending = "both terminated" if self.require_termination else "truncated ones allowed"
        return f"reward above against below the group mean, at most {self.max_pairs_per_prompt} a prompt, {ending}"


@knobs
class Preference:
    """mean over pairs of loss(margin), on pairs made once from the starting policy's samples."""

    loss_function: Sigmoid
    """The loss of a pair, given its margin."""
    pairing: GradedPairs
    """How graded samples become pairs."""

    @property
    def needs(self) -> Needs:
        """Groups of samples to pair, and the reference's log-probabilities."""
        return Needs(critic=False, reference=True, groups=True)

    def loss(self, batch: PairBatch, num_pairs: int) -> LossParts:
        """A microbatch's share of the step's loss: the sum over its pairs divided by the step's `num_pairs`."""
        chosen = batch.chosen_logp - batch.ref_chosen_logp.detach()
        rejected = batch.rejected_logp - batch.ref_rejected_logp.detach()
        margin = chosen - rejected
        loss = self.loss_function(margin).sum() / num_pairs
        with torch.no_grad():
            count = margin.new_tensor(len(margin))
            means = {
                "dpo/accuracy": Mean((margin > 0).to(margin.dtype).sum(), count),
                "dpo/margin": Mean(self.loss_function.beta * margin.detach().sum(), count),
                "dpo/chosen_logp": Mean(batch.chosen_logp.detach().sum(), count),
                "dpo/rejected_logp": Mean(batch.rejected_logp.detach().sum(), count),
            }
        return LossParts(loss=loss, means=means, maxima={})

    def formula(self) -> dict[str, str]:
        """The formula in force, one line an axis."""
        return {
            "loss_function": self.loss_function.formula(),
            "pairing": self.pairing.formula(),
            "reduction": "mean over the pairs of the step",
        }
