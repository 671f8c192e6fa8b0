"""Which critic: a model of its own or a head on the policy's, and how it is fitted."""

from typing import Annotated, Literal

from pydantic import Field

from bench.config_adapter import LowRank
from bench.config_models import Model, PretrainedModel
from bench.section import Count, CountOrZero, Positive, Section

HeadInit = Literal["zero", "normal_reward", "initializer_range"]
DEFAULT_KIND = "separate"


class Fitting(Section):
    """What every kind of critic has: its own optimizer, a warm-up, and the first weights of its last layer."""

    lr: Positive
    max_grad_norm: Positive = 1.0
    """Clips the gradient of the critic's own parameters, over all of them together."""
    warmup_updates: CountOrZero = 0
    """Updates, the first of the budget, that train the critic alone and leave the policy as it is."""
    head_init: HeadInit = "zero"
    """The last layer, d inputs: `zero` values every state 0; `normal_reward` is N(0, 1/(d+1)^2), as OpenRLHF begins a
    reward model; `initializer_range` is N(0, s^2), s the trunk's own setting, .02 where it states none."""


def _trained(adapter: LowRank | None) -> str:
    return "trained by itself" if adapter is None else f"of which an adapter of rank {adapter.rank} is trained"


class SeparateCritic(Fitting):
    """A model of the policy's size: a copy of the starting policy, trained by itself."""

    kind: Literal["separate"] = "separate"
    adapter: LowRank | None = None
    """Train an adapter and the head in place of all weights; where the policy has an adapter too, both lie over one
    base."""

    def formula(self) -> str:
        return f"V: a copy of the starting policy, {_trained(self.adapter)}"


class ModelCritic(Fitting):
    """Any other model in the policy's vocabulary, smaller or larger, trained by itself."""

    kind: Literal["model"] = "model"
    model: Model
    """By name or folder, whatever head it was saved with; a tiny one is made in the policy's vocabulary."""
    adapter: LowRank | None = None
    """Train an adapter and the head in place of all weights."""

    def formula(self) -> str:
        model = self.model
        name = model.path if isinstance(model, PretrainedModel) else f"tiny, {model.num_layers} x {model.hidden_size}"
        return f"V: another model ({name}), {_trained(self.adapter)}"


class HeadCritic(Fitting):
    """A linear value head on the policy's trunk."""

    kind: Literal["head"] = "head"
    stop_gradient: bool = False
    """Keep the value loss out of the trunk; the head is trained alone then."""
    coefficient: Positive = 0.1
    """c_v: the trunk takes the gradient of the policy's loss + c_v * value loss, in the policy's own step."""

    def formula(self) -> str:
        if self.stop_gradient:
            return "V: linear in the policy's states, no gradient into them"
        return f"V: linear in the policy's states, whose trunk descends policy loss + {self.coefficient:g} value loss"


class MlpCritic(Fitting):
    """A small multilayer perceptron on the policy's hidden states, without a gradient into them."""

    kind: Literal["mlp"] = "mlp"
    hidden_sizes: Annotated[tuple[Count, ...], Field(min_length=1)] = (64,)
    """Width of each hidden layer."""

    def formula(self) -> str:
        return f"V: MLP ({', '.join(map(str, self.hidden_sizes))}) on the policy's states, no gradient into them"


Critic = SeparateCritic | ModelCritic | HeadCritic | MlpCritic
