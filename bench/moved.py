"""Whether training moved the weights at all: the share of parameters whose value is another than at the start.

A step that is smaller than half the distance to the next number of the weights' precision changes nothing, however
often it is taken: with a learning rate of 1e-6 that is most of bfloat16. Weights are float32 here, whatever the model
was stored in, so what is left to find is a step that is too small even for that.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from bench import sharding

SAMPLED = 2**14
"""Values of one tensor that are compared; a larger tensor is looked at evenly spread over its length."""


class Unmoved(RuntimeError):
    """All of the training changed no weight; the message says what to change."""


def sample_of(network: nn.Module) -> dict[str, Tensor]:
    """Evenly spread values of each trained parameter, to be compared later; of a sharded one, this process's part."""
    trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    return {name: _spread(parameter).clone() for name, parameter in trained}


def changed_share(network: nn.Module, before: Mapping[str, Tensor]) -> float:
    """Share of the trained parameters whose value differs from `sample_of` before, tensors weighed by their size."""
    changed, total = 0.0, 0
    for name, parameter in network.named_parameters():
        if name in before:
            changed += float((_spread(parameter) != before[name]).double().mean()) * parameter.numel()
            total += parameter.numel()
    return changed / total if total else 0.0


def unmoved_sentence(updates: int, lr: float) -> str:
    """What is said of a run whose last weights are those it started from."""
    return (
        f"optimizer.lr: {lr:g} given, and after {updates} updates 0 % of the parameters have another value than at the "
        "start: every step was smaller than the weights' precision. Raise optimizer.lr"
    )


def _spread(parameter: nn.Parameter) -> Tensor:
    values = sharding.part(parameter.detach()).flatten()
    return values[:: max(1, -(-values.numel() // SAMPLED))]
