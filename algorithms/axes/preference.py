"""The preference family: pairs of graded samples and a loss on them (DPO and its relatives)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from algorithms.axes.batch import LossParts, PairBatch, PairTotals
from algorithms.axes.knobs import knobs
from algorithms.axes.masked import Mean, slack
from algorithms.axes.needs import Needs


@dataclass(frozen=True)
class LogRatios:
    """log(pi / reference) of both sides of each pair, summed over tokens, and the sides' numbers of tokens."""

    chosen: Float[Tensor, "pairs"]
    rejected: Float[Tensor, "pairs"]
    chosen_length: Float[Tensor, "pairs"]
    rejected_length: Float[Tensor, "pairs"]

    @property
    def per_token(self) -> "LogRatios":
        """Each log-ratio divided by its completion's tokens."""
        chosen = self.chosen / self.chosen_length.clamp(min=1)
        rejected = self.rejected / self.rejected_length.clamp(min=1)
        return LogRatios(chosen, rejected, self.chosen_length, self.rejected_length)


@knobs
class Sigmoid:
    """-log sigmoid(beta * margin): DPO's loss (2305.18290, Eq. 7)."""

    beta: Annotated[float, Field(gt=0)]
    """Strength of the pull towards the reference."""

    def __call__(self, ratios: LogRatios) -> Float[Tensor, "pairs"]:
        return -logsigmoid(self.beta * (ratios.chosen - ratios.rejected))

    def formula(self) -> str:
        return f"-log sigmoid({self.beta:g} * (log-ratio of chosen - log-ratio of rejected)), log-probabilities summed"


@knobs
class SigmoidNorm:
    """-log sigmoid(beta * margin) with each side's log-ratio divided by its length (Tulu 3, 2411.15124)."""

    beta: Annotated[float, Field(gt=0)]
    """Strength of the pull towards the reference, per token: larger than DPO's."""

    def __call__(self, ratios: LogRatios) -> Float[Tensor, "pairs"]:
        mean = ratios.per_token
        return -logsigmoid(self.beta * (mean.chosen - mean.rejected))

    def formula(self) -> str:
        return f"-log sigmoid({self.beta:g} * (log-ratio of chosen / its L - log-ratio of rejected / its L))"


@knobs
class Ipo:
    """(margin - 1 / (2 beta))^2: the squared loss of IPO (2310.12036, Eq. 17), whose margin has a finite target."""

    beta: Annotated[float, Field(gt=0)]
    """Regularisation (the paper's tau): the margin is pulled to 1 / (2 beta)."""
    per_token: bool = True
    """Divide each side's log-ratio by its length, as TRL does; otherwise sums, as the paper's equation has them."""

    def __call__(self, ratios: LogRatios) -> Float[Tensor, "pairs"]:
        sides = ratios.per_token if self.per_token else ratios
        return (sides.chosen - sides.rejected - 1 / (2 * self.beta)) ** 2

    def formula(self) -> str:
        length = " / its L" if self.per_token else ""
        return f"(log-ratio of chosen{length} - log-ratio of rejected{length} - 1 / (2 * {self.beta:g}))^2"


@knobs
class NoLikelihood:
    """The preference loss alone."""

    def __call__(self, batch: PairBatch, totals: PairTotals) -> Float[Tensor, ""] | None:
        return None

    def formula(self) -> str:
        return "none"


@knobs
class ChosenLikelihood:
    """+coefficient * negative log-likelihood of the chosen side, which DPO alone lets fall (IRPO, 2404.19733)."""

    coefficient: Annotated[float, Field(gt=0)]
    """Weight of the term (alpha)."""
    normalise: Literal["sequence", "token"] = "sequence"
    """Mean over pairs of the mean over tokens (2404.19733, Eq. 1), or mean over all chosen tokens of the step (TRL)."""

    def __call__(self, batch: PairBatch, totals: PairTotals) -> Float[Tensor, ""] | None:
        """The microbatch's share of the term."""
        if self.normalise == "token":
            return -self.coefficient * batch.chosen_logp.sum() / max(totals.num_chosen_tokens, 1)
        mean = batch.chosen_logp / batch.chosen_length.clamp(min=1)
        return -self.coefficient * mean.sum() / totals.num_pairs

    def formula(self) -> str:
        over = "pairs of the mean over tokens" if self.normalise == "sequence" else "all chosen tokens of the step"
        return f"- {self.coefficient:g} * mean of log pi(chosen) over {over}"


@knobs
class GradedPairs:
    """Pairs from graded samples of the policy: reward above against below the mean of the usable samples.

    For a 0/1 reward this is correct against wrong. A tie never makes a pair. Both sides must have ended by themselves
    unless told otherwise: a truncated reject teaches "stop", not "be right". Both lists are shuffled and zipped, the
    shorter one cycled (IRPO, 2404.19733, section 2); identical texts enter once.
    """

    samples: ClassVar[bool] = True
    max_pairs_per_prompt: Annotated[int, Field(ge=1)] = 8
    """Keeps easy prompts from dominating; half the group size matches an online run's gradient tokens."""
    require_termination: bool = True
    """Leave truncated completions out of pairs."""
    rounds: Annotated[int, Field(ge=1)] = 1
    """1 is offline: all is sampled from the starting policy. More is iterative: the budget's prompts and updates are
    split evenly, and each round samples from the policy as it then is, which becomes the reference (2404.19733)."""
    keep_optimizer: bool = False
    """Keep the optimizer's moments at a new round. Otherwise they are forgotten, as where every round is a training of
    its own (2404.19733, section 3.1). The schedule of the learning rate runs over the whole budget either way."""
    length_match: bool = False
    """Give each chosen sample the rejected one of nearest length in place of a random one, so that length itself is not
    what is learnt (our control; 2403.19159 shows the bias)."""
    gold_solution: bool = False
    """Where every sample of a prompt is wrong, the task's worked solution is the chosen side (2404.19733, first
    version); no longer a policy's own text, so off in a pure on-policy baseline."""

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
        tie = slack(mean)
        chosen = [member for member, value in usable.items() if value > mean + tie]
        rejected = [member for member, value in usable.items() if value < mean - tie]
        return chosen, rejected

    def couples(self, chosen: Sequence[int], rejected: Sequence[int]) -> list[tuple[int, int]]:
        """Which chosen sample meets which rejected one, by position, given both sides' lengths in shuffled order."""
        count = min(self.max_pairs_per_prompt, max(len(chosen), len(rejected)))
        if not self.length_match:
            return [(i % len(chosen), i % len(rejected)) for i in range(count)]
        found: list[tuple[int, int]] = []
        left: list[int] = []
        for i in range(count):
            left = left or list(range(len(rejected)))
            length = chosen[i % len(chosen)]
            nearest = min(left, key=lambda j: (abs(rejected[j] - length), j))
            left = [j for j in left if j != nearest]
            found.append((i % len(chosen), nearest))
        return found

    def formula(self) -> str:
        ending = "both terminated" if self.require_termination else "truncated ones allowed"
        parts = [f"reward above against below the group mean, at most {self.max_pairs_per_prompt} a prompt, {ending}"]
        if self.length_match:
            parts.append("lengths matched")
        if self.gold_solution:
            parts.append("worked solution chosen where all are wrong")
        if self.rounds > 1:
            parts.append(f"{self.rounds} rounds, the policy at the start of each its reference")
        return ", ".join(parts)


@knobs
class FixedPairs:
    """Pairs of a preference data set that was there before the run, in TRL's formats; nothing is sampled for training.

    The reference is the starting policy.
    """

    samples: ClassVar[bool] = False
    rounds: ClassVar[int] = 1
    path: Annotated[str, Field(min_length=1)]
    """Name on the hub, a file (.jsonl, .json, .csv, .parquet) or a folder that holds the split's files."""
    split: str = "train"
    """Split on the hub, or the beginning of the files' names in a folder."""
    config: str | None = None
    """Configuration of a data set on the hub, where it has several."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""

    def formula(self) -> str:
        return f"chosen against rejected of {self.path} ({self.split}), the starting policy the reference"


@knobs
class Preference:
    """mean over pairs of loss(log-ratios) + likelihood term, on pairs that are there before a round's first update."""

    loss_function: Annotated[Sigmoid | SigmoidNorm | Ipo, Field(discriminator="kind")]
    """The loss of a pair, given both sides' log-ratios to the reference."""
    likelihood: Annotated[NoLikelihood | ChosenLikelihood, Field(discriminator="kind")] = NoLikelihood()
    """Whether the chosen side's likelihood is held up."""
    pairing: Annotated[GradedPairs | FixedPairs, Field(discriminator="kind")]
    """Where pairs come from: graded samples, or a data set."""

    @property
    def needs(self) -> Needs:
        """The reference's log-probabilities, and groups of graded samples where pairs are made of them."""
        sampled = self.pairing.samples
        return Needs(critic=False, reference=True, groups=sampled, reward=sampled, samples=sampled)

    def loss(self, batch: PairBatch, totals: PairTotals) -> LossParts:
        """A microbatch's share of the step's loss: sums over its pairs divided by the step's totals."""
        ratios = LogRatios(
            batch.chosen_logp - batch.ref_chosen_logp.detach(),
            batch.rejected_logp - batch.ref_rejected_logp.detach(),
            batch.chosen_length,
            batch.rejected_length,
        )
        loss, likelihood = self.loss_function(ratios).sum() / totals.num_pairs, self.likelihood(batch, totals)
        with torch.no_grad():
            margin, beta = ratios.chosen - ratios.rejected, self.loss_function.beta
            count = margin.new_tensor(len(margin))
            means = {
                "dpo/accuracy": Mean((margin > 0).to(margin.dtype).sum(), count),
                "dpo/margin": Mean(beta * margin.detach().sum(), count),
                "dpo/chosen_reward": Mean(beta * ratios.chosen.detach().sum(), count),
                "dpo/rejected_reward": Mean(beta * ratios.rejected.detach().sum(), count),
                "dpo/chosen_logp": Mean(batch.chosen_logp.detach().sum(), count),
                "dpo/rejected_logp": Mean(batch.rejected_logp.detach().sum(), count),
            }
        return LossParts(loss=loss if likelihood is None else loss + likelihood, means=means, maxima={})

    def formula(self) -> dict[str, str]:
        """The formula in force, one line an axis."""
        return {
            "loss_function": self.loss_function.formula(),
            "likelihood": self.likelihood.formula(),
            "pairing": self.pairing.formula(),
            "reduction": "mean over the pairs of the step",
        }
