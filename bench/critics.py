"""Critics: a value head on hidden states, and the trunk that makes them where it is not the policy's own."""

from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bench.adapted_weights import adapted_layers, plain_copy
from bench.adapters import adapted, adapted_copy
from bench.checks_critic import room_mistake, vocabulary_mistake
from bench.config import Run
from bench.config_adapter import Lora, LowRank
from bench.config_critic import Fitting, HeadCritic, HeadInit, MlpCritic, ModelCritic, SeparateCritic
from bench.config_models import PretrainedModel, TinyModel
from bench.embeddings import reads_every_id, rows_of, weight_of
from bench.models import LanguageModel, ModelUnavailable, base_of, context_of, create_tiny_trunk, load_trunk
from bench.seeding import generator, stream_key


class Critic(nn.Module):
    """Values of hidden states. Its parameters are its own alone: without a trunk it reads the states of the policy's,
    whose parameters stay the policy's."""

    def __init__(self, head: nn.Module, trunk: PreTrainedModel | None = None, into_trunk: float = 1.0) -> None:
        """
        Args:
            head: float32 (..., hidden size) to (..., 1).
            into_trunk: factor on the gradient that goes from a value into the states; 0 is none.
        """
        super().__init__()
        self.trunk = trunk
        self.head = head
        self.into_trunk = into_trunk
        self.eval()

    def value(self, states: Tensor) -> Tensor:
        """Values of hidden states (..., hidden size): float32 (...)."""
        if self.into_trunk != 1:
            states = _Scaled.apply(states, self.into_trunk) if self.into_trunk else states.detach()
        # Autocast would round a value, which nothing averages, to three digits.
        with torch.autocast(states.device.type, enabled=False):
            return self.head(states.float()).squeeze(-1)


class _Scaled(torch.autograd.Function):
    """The same numbers, with a factor on their gradient."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return states.view_as(states)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None


def make_critic(run: Run, start: LanguageModel) -> Critic:
    """The critic that the run asks for, on the run's device, with weights that its seed alone decides.

    Args:
        start: the policy before its first update.

    Raises:
        ModelUnavailable: another model cannot be had, or does not read what the policy writes; one line.
    """
    config = run.critic
    assert config is not None, "the configuration gives a critic to objectives that need one"
    trunk = trunk_of(run, start)
    head = make_head(run.seed, config, base_of(start.network) if trunk is None else trunk)
    into_trunk = 1.0
    if isinstance(config, HeadCritic | MlpCritic):
        into_trunk = 0.0 if isinstance(config, MlpCritic) or config.stop_gradient else config.coefficient
    return Critic(head, trunk, into_trunk).to(run.device)


def trunk_of(run: Run, start: LanguageModel) -> PreTrainedModel | None:
    """The model whose states the critic reads, to be trained with it; None where that is the policy."""
    match run.critic:
        case SeparateCritic(adapter=None):
            adapted_too = adapted_layers(start.network)
            return base_of(plain_copy(start.network)) if adapted_too else deepcopy(base_of(start.network))
        case SeparateCritic(adapter=LowRank() as knobs):
            return base_of(adapted_copy(start.network, _lora(knobs), run.seed, "critic"))
        case ModelCritic(model=TinyModel() as tiny, adapter=knobs):
            trunk = create_tiny_trunk(tiny, rows_of(start.network), stream_key(run.seed, "critic"))
            return trunk if knobs is None else adapted(trunk, _lora(knobs), run.seed, "critic")
        case ModelCritic(model=PretrainedModel() as named, adapter=knobs):
            trunk, tokenizer = load_trunk(named, "critic.model")
            _check_vocabulary(named.path, start.tokenizer, tokenizer, trunk)
            check_room(trunk, 1 + run.rollout.max_completion_tokens)
            trunk = reads_every_id(trunk, rows_of(start.network))
            return trunk if knobs is None else adapted(trunk, _lora(knobs), run.seed, "critic")
        case _:
            return None


def _lora(knobs: LowRank) -> Lora:
    return Lora(**knobs.model_dump())


def make_head(seed: int, config: Fitting, trunk: PreTrainedModel) -> nn.Module:
    """The layers from a hidden state of `trunk` to its value, (..., hidden size) to (..., 1), in float32."""
    widths = [
        trunk.config.get_text_config().hidden_size,
        *(config.hidden_sizes if isinstance(config, MlpCritic) else ()),
    ]
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        # Variance 1 / inputs keeps the size of what passes through.
        layers += [_linear(_normal(seed, f"layer {i}", outputs, inputs, inputs**-0.5), bias=True), nn.GELU()]
    head = _linear(_normal(seed, "head", 1, widths[-1], head_scale(config.head_init, widths[-1], trunk)), bias=False)
    return nn.Sequential(*layers, head) if layers else head


def head_scale(init: HeadInit, inputs: int, trunk: PreTrainedModel) -> float:
    """Standard deviation of the last layer's first weights."""
    if init == "zero":
        return 0.0
    if init == "normal_reward":
        return 1 / (inputs + 1)
    return float(getattr(trunk.config.get_text_config(), "initializer_range", None) or 0.02)


def _normal(seed: int, layer: str, outputs: int, inputs: int, scale: float) -> Tensor:
    """float32 (outputs, inputs): from a stream of the layer's own, equal for all runs of a seed."""
    drawn = generator(seed, "critic", layer).standard_normal((outputs, inputs))
    return torch.from_numpy((drawn * scale).astype(np.float32))


def _linear(weight: Tensor, *, bias: bool) -> nn.Linear:
    # Not initialised first: that would draw from the process's random generator.
    outputs, inputs = weight.shape
    layer: Any = nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias, dtype=torch.float32)
    layer.load_state_dict({"weight": weight, **({"bias": torch.zeros(outputs)} if bias else {})})
    return layer


def _check_vocabulary(
    path: str, policy: PreTrainedTokenizerBase, own: PreTrainedTokenizerBase, trunk: PreTrainedModel
) -> None:
    """Raises ModelUnavailable unless every token of the policy's has the same id there, and a row."""
    line = vocabulary_mistake(path, policy.get_vocab(), own.get_vocab())
    rows, highest = weight_of(trunk.get_input_embeddings()).shape[0], max(policy.get_vocab().values())
    if line is None and highest >= rows:
        line = f"critic.model.path: {path} reads {rows} token ids, but the policy's tokenizer goes up to {highest}"
    if line is not None:
        raise ModelUnavailable(line)


def check_room(trunk: PreTrainedModel, longest: int) -> None:
    """Raises ModelUnavailable if a prompt with its completion is longer than what a critic's own trunk can read.

    Args:
        longest: its tokens.
    """
    line = room_mistake(context_of(trunk), longest)
    if line is not None:
        raise ModelUnavailable(line)
