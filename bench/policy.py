"""Scoring: log-probabilities, entropies and values of given completions' tokens, defined once for all objectives."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bench.critics import Critic
from bench.models import base_of
from bench.packing import Layout, attends_by_products, layout_of, packed_states, packs, spread
from bench.token_head import entropy_of, logp_and_entropy, picked

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Sequences:
    """Completions with their prompts: lists of token ids, and the shapes in which models read them, made once."""

    prompts: tuple[tuple[int, ...], ...]
    """Token ids, one tuple for each completion; equal prompts are computed once where the model allows it."""
    completions: tuple[tuple[int, ...], ...]
    pad_id: int
    device: torch.device = _CPU

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], pad_id: int) -> "Sequences":
        """From lists of token ids."""
        return cls(tuple(map(tuple, prompts)), tuple(map(tuple, completions)), pad_id)

    def __len__(self) -> int:
        return len(self.completions)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each completion."""
        return tuple(map(len, self.completions))

    @cached_property
    def prompt_lengths(self) -> tuple[int, ...]:
        return tuple(map(len, self.prompts))

    @cached_property
    def prompt_ids(self) -> Tensor:
        """int64 (rows, prompt width): prompts padded on the left."""
        return pad_left(self.prompts, self.pad_id).to(self.device)

    @cached_property
    def completion_ids(self) -> Tensor:
        """int64 (rows, completion width): completions padded on the right."""
        return pad_right(self.completions, self.pad_id).to(self.device)

    @cached_property
    def mask(self) -> Tensor:
        """bool (rows, completion width): True for generated tokens, from lengths and never from token values."""
        width = torch.arange(self.width)
        return (width[None, :] < torch.tensor(self.lengths)[:, None]).to(self.device)

    @cached_property
    def layout(self) -> Layout:
        """The packed row that predicts every completion token."""
        return layout_of(self.prompts, self.completions, with_last=False).to(self.device)

    @cached_property
    def layout_with_last(self) -> Layout:
        """The packed row that also has the state after each completion's last token."""
        return layout_of(self.prompts, self.completions, with_last=True).to(self.device)

    @cached_property
    def _pieces(self) -> dict[tuple[int, ...], "Sequences"]:
        return {}

    @property
    def width(self) -> int:
        """Tokens of the longest completion."""
        return max(self.lengths)

    def rows(self, index: Sequence[int]) -> "Sequences":
        """Some of the rows, with padding that none of them needs cut away; the same piece each time they are asked for,
        so that its shapes are made once for all passes over it."""
        key = tuple(index)
        if key not in self._pieces:
            prompts, completions = tuple(self.prompts[i] for i in key), tuple(self.completions[i] for i in key)
            self._pieces[key] = replace(self, prompts=prompts, completions=completions)
        return self._pieces[key]

    def to(self, device: torch.device | str) -> "Sequences":
        return replace(self, device=torch.device(device))


def pad_left(rows: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """int64 (rows, longest): each row ends at the right edge."""
    width = max(len(row) for row in rows)
    return torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows], dtype=torch.int64)


def pad_right(rows: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """int64 (rows, longest): each row begins at the left edge."""
    width = max(len(row) for row in rows)
    return torch.tensor([list(row) + [pad_id] * (width - len(row)) for row in rows], dtype=torch.int64)


def attention_inputs(prompt_lengths: Sequence[int], width: int, extra: int, device: torch.device) -> dict[str, Tensor]:
    """Mask and positions for left-padded prompts of `width` followed by `extra` tokens; empty where nothing is padded.

    Padding after a completion needs no mask: attention is causal, and what stands there is never read.
    """
    if all(length == width for length in prompt_lengths):
        return {}
    padding = width - torch.tensor(prompt_lengths)
    positions = torch.arange(width + extra)[None, :] - padding[:, None]
    return {
        "attention_mask": (positions >= 0).long().to(device),
        "position_ids": positions.clamp(min=0).to(device),
    }


def _inputs(sequences: Sequences) -> dict[str, Tensor]:
    ids = torch.cat([sequences.prompt_ids, sequences.completion_ids], dim=1)
    width, extra = max(sequences.prompt_lengths), max(sequences.lengths)
    return {"input_ids": ids, **attention_inputs(sequences.prompt_lengths, width, extra, ids.device)}


def completion_logits(network: PreTrainedModel, sequences: Sequences) -> Tensor:
    """Logits that predict each completion token: float32 (rows, completion width, vocabulary). No other position passes
    through the vocabulary head."""
    kept = sequences.completion_ids.shape[1] + 1
    output = network(**_inputs(sequences), logits_to_keep=kept, use_cache=False)
    return output.logits[:, :-1].float()


def token_logps(network: PreTrainedModel, sequences: Sequences, temperature: float) -> Tensor:
    """Log-probability of each completion token under softmax(logits / temperature): float32 (rows, width), 0 beyond a
    completion's end."""
    return token_logps_and_entropy(network, sequences, temperature)[0]


def token_logps_and_entropy(
    network: PreTrainedModel, sequences: Sequences, temperature: float, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """The same, and the exact entropy of each distribution, without its gradient unless that is asked for."""
    logp, entropy, _ = token_scores(network, sequences, temperature, entropy_gradient)
    return logp, entropy


def token_scores(
    network: PreTrainedModel,
    sequences: Sequences,
    temperature: float,
    entropy_gradient: bool = False,
    critic: Critic | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same, and from the same pass the values of a critic that reads this network's states; None without one."""
    value = None
    if reads_packed(network):
        layout = sequences.layout
        states = packed_states(base_of(network), layout)[layout.predictors]
        head = network.get_output_embeddings()
        assert isinstance(head, nn.Linear), "reads_packed has looked"
        scored = logp_and_entropy(states, head, layout.targets, temperature, entropy_gradient=entropy_gradient)
        logp, entropy = (spread(numbers, layout) for numbers in scored)
    else:
        with nullcontext([]) if critic is None else _last_states(network) as kept:
            logits = completion_logits(network, sequences)
        states = kept[0][:, max(sequences.prompt_lengths) - 1 : -1] if kept else logits
        logits = logits if temperature == 1 else logits / temperature
        logp, normaliser = picked(logits, sequences.completion_ids)
        with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
            entropy = entropy_of(logits, normaliser)
    if critic is not None:
        value = values_of(critic, states, sequences)
    return logp.masked_fill(~sequences.mask, 0.0), entropy.masked_fill(~sequences.mask, 0.0), value


@contextmanager
def _last_states(network: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Keeps what the trunk hands to the vocabulary head in the pass made inside, (rows, positions, hidden size)."""
    kept: list[Tensor] = []
    handle = base_of(network).register_forward_hook(lambda *call: kept.append(call[-1].last_hidden_state))
    try:
        yield kept
    finally:
        handle.remove()


def reads_packed(network: PreTrainedModel) -> bool:
    """Whether this network scores packed rows; the others score rectangles, with padding and whole logits.

    Packed rows need a family that `bench.packing` knows and a vocabulary head that is a plain linear layer.
    """
    return packs(network) and type(network.get_output_embeddings()) is nn.Linear


def planned(network: PreTrainedModel, sequences: Sequences) -> Sequences:
    """The same sequences, with all made that a scoring pass reads of them beside the weights.

    Shapes depend on the data, so they are made before a step is measured and not in it.
    """
    _ = sequences.mask
    if not reads_packed(network):
        _ = sequences.prompt_ids, sequences.completion_ids
    elif attends_by_products(sequences.layout, network.config):
        _ = sequences.layout.bias
    return sequences


def computed_positions(network: PreTrainedModel, sequences: Sequences) -> int:
    """Tokens that a scoring pass over these sequences puts through the network, padding included."""
    if reads_packed(network):
        return sequences.layout.ids.shape[1]
    return len(sequences) * (max(sequences.prompt_lengths) + max(sequences.lengths))


def predictor_states(trunk: PreTrainedModel, sequences: Sequences) -> Tensor:
    """The trunk's hidden state before each completion token: (scored tokens, hidden size) where it reads packed rows,
    (rows, completion width, hidden size) where not."""
    if packs(trunk):
        layout = sequences.layout
        return packed_states(trunk, layout)[layout.predictors]
    hidden = trunk(**_inputs(sequences), use_cache=False).last_hidden_state
    return hidden[:, max(sequences.prompt_lengths) - 1 : -1]


def values_of(critic: Critic, states: Tensor, sequences: Sequences) -> Tensor:
    """The critic's value of the state before each completion token: float32 (rows, completion width), 0 beyond a
    completion's end.

    Args:
        states: as `predictor_states` gives them.
    """
    values = critic.value(states)
    return (spread(values, sequences.layout) if values.dim() == 1 else values).masked_fill(~sequences.mask, 0.0)


def token_values(critic: Critic, trunk: PreTrainedModel, sequences: Sequences) -> Tensor:
    """The same, on the states of `trunk`: the critic's own, or the policy's."""
    return values_of(critic, predictor_states(trunk, sequences), sequences)


def values_after(critic: Critic, trunk: PreTrainedModel, sequences: Sequences) -> Tensor:
    """The critic's value of the state after each completion's last token: float32 (rows,)."""
    if packs(trunk):
        layout = sequences.layout_with_last
        return critic.value(packed_states(trunk, layout)[layout.last])
    hidden = trunk(**_inputs(sequences), use_cache=False).last_hidden_state
    lengths = torch.tensor(sequences.lengths, device=hidden.device)
    last = max(sequences.prompt_lengths) - 1 + lengths
    return critic.value(hidden[torch.arange(len(sequences), device=hidden.device), last])
