"""Scoring: log-probabilities, entropies and values of given completions' tokens, defined once for all objectives."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from bench.models import Critic


@dataclass(frozen=True)
class Sequences:
    """Prompts and completions as rectangles: prompts padded on the left, completions on the right."""

    prompt_ids: Tensor
    """int64 (rows, prompt width)."""
    prompt_lengths: tuple[int, ...]
    completion_ids: Tensor
    """int64 (rows, completion width)."""
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], pad_id: int) -> "Sequences":
        """Pad lists of token ids to rectangles."""
        return cls(
            pad_left(prompts, pad_id),
            tuple(len(p) for p in prompts),
            pad_right(completions, pad_id),
            tuple(len(c) for c in completions),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def mask(self) -> Tensor:
        """bool (rows, completion width): True for generated tokens, from lengths and never from token values."""
        width = torch.arange(self.completion_ids.shape[1])
        return (width[None, :] < torch.tensor(self.lengths)[:, None]).to(self.completion_ids.device)

    def rows(self, index: Sequence[int]) -> "Sequences":
        """Some of the rows, with padding that none of them needs cut away."""
        prompt_lengths = tuple(self.prompt_lengths[i] for i in index)
        lengths = tuple(self.lengths[i] for i in index)
        picked = torch.as_tensor(index, device=self.prompt_ids.device)
        prompts = self.prompt_ids[picked, self.prompt_ids.shape[1] - max(prompt_lengths) :]
        return Sequences(prompts, prompt_lengths, self.completion_ids[picked, : max(lengths)], lengths)

    def to(self, device: torch.device | str) -> "Sequences":
        return Sequences(self.prompt_ids.to(device), self.prompt_lengths, self.completion_ids.to(device), self.lengths)


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
    width, extra = sequences.prompt_ids.shape[1], sequences.completion_ids.shape[1]
    return {"input_ids": ids, **attention_inputs(sequences.prompt_lengths, width, extra, ids.device)}


def completion_logits(network: PreTrainedModel, sequences: Sequences) -> Tensor:
    """Logits that predict each completion token: float32 (rows, completion width, vocabulary). No other position passes
    through the vocabulary head."""
    kept = sequences.completion_ids.shape[1] + 1
    output = network(**_inputs(sequences), logits_to_keep=kept, use_cache=False)
    return output.logits[:, :-1].float()


def token_logps(network: PreTrainedModel, sequences: Sequences, temperature: float) -> Tensor:
    """Log-probability of each completion token under softmax(logits / temperature), float32 (rows, width)."""
    return _picked(_tempered(network, sequences, temperature), sequences.completion_ids)[0]


def token_logps_and_entropy(
    network: PreTrainedModel, sequences: Sequences, temperature: float, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """The same, and the exact entropy of each distribution, without its gradient unless that is asked for."""
    logits = _tempered(network, sequences, temperature)
    logp, normaliser = _picked(logits, sequences.completion_ids)
    if entropy_gradient:
        # entr's gradient at probability 0 is infinite; this form's is 0.
        return logp, normaliser - ((logits - normaliser[..., None]).exp() * logits).sum(dim=-1)
    with torch.no_grad():
        entropy = torch.special.entr((logits - normaliser[..., None]).exp()).sum(dim=-1)
    return logp, entropy


def _tempered(network: PreTrainedModel, sequences: Sequences, temperature: float) -> Tensor:
    logits = completion_logits(network, sequences)
    return logits if temperature == 1 else logits / temperature


def _picked(logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    normaliser = logits.logsumexp(dim=-1)
    return logits.gather(-1, ids[..., None]).squeeze(-1) - normaliser, normaliser


def token_values(critic: Critic, sequences: Sequences) -> Tensor:
    """The critic's value of the state before each completion token: float32 (rows, completion width)."""
    hidden = critic.trunk(**_inputs(sequences), use_cache=False).last_hidden_state
    first = sequences.prompt_ids.shape[1] - 1
    return critic.head(hidden[:, first:-1].float()).squeeze(-1)


def values_after(critic: Critic, sequences: Sequences) -> Tensor:
    """The critic's value of the state after each completion's last token: float32 (rows,)."""
    hidden = critic.trunk(**_inputs(sequences), use_cache=False).last_hidden_state
    lengths = torch.tensor(sequences.lengths, device=hidden.device)
    last = hidden[torch.arange(len(sequences), device=hidden.device), sequences.prompt_ids.shape[1] - 1 + lengths]
    return critic.head(last.float()).squeeze(-1)
