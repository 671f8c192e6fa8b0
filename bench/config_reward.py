"""What a completion is worth in training: verdict, imperfections, form, the user's functions, a learned score."""

from typing import Annotated, Literal

from pydantic import Field

from bench.config_reward_model import RewardModelConfig
from bench.section import NotNegative, Positive, Section


class Noise(Section):
    """An imperfect verifier: each verdict is flipped at a given rate."""

    false_positive: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Chance that a wrong completion is called correct."""
    false_negative: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Chance that a correct completion is called wrong."""
    per: Literal["completion", "answer"] = "completion"
    """`completion`: each is drawn for itself; `answer`: equal answers to one problem are flipped together, always."""


class RewardFunction(Section):
    """A user's own reward: a plain function `(completions, **columns) -> list[float | None]`."""

    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    """`package.module:function`, importable where the run is started; None or NaN for a completion is unscorable."""
    weight: float = 1.0
    limit_seconds: Positive = 10.0
    """For one completion; one that takes longer is unscorable."""


class Reward(Section):
    """What a completion is worth in training; evaluation never sees any of it."""

    source: Literal["verifier", "random", "format_only", "functions", "model"] = "verifier"
    """`verifier`: the task's verdict; controls are `random` (a fair coin) and `format_only` (the format score alone);
    `functions`: the user's functions, without a verdict; `model`: the reward model, without a verdict."""
    correct: float = 1.0
    wrong: float = 0.0
    format: NotNegative = 0.0
    """Weight of the format score (0 to 1), added to the above."""
    format_rule: Literal["task", "think_answer", "json"] = "task"
    """`task`: the task's own; `think_answer`: <think>...</think><answer>...</answer>; `json`: valid for a schema."""
    format_schema: str | None = None
    """File with the JSON schema of `json`."""
    functions: tuple[RewardFunction, ...] = ()
    """The user's own rewards, weighted and added."""
    model: RewardModelConfig | None = None
    """A learned reward model, whose score is weighted and added."""
    noise: Noise | None = None
    sparsity: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the prompts that carry a label (of the pairs, where an objective learns from pairs)."""

    def formula(self) -> str:
        """The reward in one line: its parts as they are added."""
        parts = {
            "verifier": [f"{self.correct:g} if right, {self.wrong:g} if wrong"],
            "random": ["a fair coin, 1 or 0"],
        }.get(self.source, [])
        parts += [f"{self.format:g} x form ({self.format_rule})"] if self.format else []
        parts += [f"{own.weight:g} x {own.function}" for own in self.functions]
        if self.model is not None:
            about = [self.model.kind, *(["standardised"] if getattr(self.model, "standardise", False) else [])]
            about += [f"cut at {self.model.clip:g}"] if self.model.clip else []
            parts.append(f"{self.model.weight:g} x reward model ({', '.join(about)})")
        return " + ".join(parts)
