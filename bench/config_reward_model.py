"""Knobs of a learned reward model: one that transformers loads, or one trained on the starting policy's own samples."""

from typing import Annotated, Literal

from pydantic import Field

from bench.section import Count, CountOrZero, Positive, Section, Threads


class PretrainedReward(Section):
    """Any sequence classification model of transformers with one output."""

    kind: Literal["pretrained"] = "pretrained"
    path: str
    """Name on the hub, or a folder."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    tokens: Literal["policy", "own"] = "policy"
    """`policy`: it reads the very tokens of the policy, whose vocabulary it must have; `own`: prompt and completion are
    written anew, as text, with its own tokenizer and chat template."""
    weight: float = 1.0
    """Of its score in the reward; negative turns its order round."""
    clip: Positive | None = None
    """Scores are cut at this much above and below 0; null is no limit."""


class TrainedReward(Section):
    """The starting policy with a scalar head, trained on its own graded samples before the runs, which share it."""

    kind: Literal["trained"] = "trained"
    problems: Annotated[int, Field(ge=2)]
    """Training problems that are sampled."""
    samples: Annotated[int, Field(ge=2)]
    """Completions of each; those that are correct are paired with those that are wrong."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """Share of the problems that it is not trained on, for its accuracy on pairs."""
    updates: Count
    batch_size: Count = 16
    """Prompts an optimizer step; each counts once, whatever its number of pairs."""
    lr: Positive
    min_accuracy: Annotated[float, Field(ge=0, lt=1)] = 0.55
    """Held-out accuracy on pairs below which no run starts; chance is 0.5, and 0 takes any."""
    seed: CountOrZero = 0
    """Its own seed, so that runs that differ in theirs have the same reward."""
    threads: Threads = 2
    """CPU threads of this stage, which runs before the trials do."""
    standardise: bool = True
    """Scores less their mean, over their standard deviation, both over the samples that it was trained on: the loss
    fixes neither zero nor unit, and a weight would mean something else for each model."""
    weight: float = 1.0
    """Of its score in the reward; negative turns its order round."""
    clip: Positive | None = None
    """Scores, standardised where they are, are cut at this much above and below 0; null is no limit."""


RewardModelConfig = Annotated[PretrainedReward | TrainedReward, Field(discriminator="kind")]
