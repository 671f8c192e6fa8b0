"""Embeddings: how many token ids a model writes or reads, and a row for each id that another one may write."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


def rows_of(network: PreTrainedModel) -> int:
    """Token ids that a policy may write: the rows of its vocabulary head."""
    return weight_of(network.get_output_embeddings() or network.get_input_embeddings()).shape[0]


def weight_of(layer: nn.Module | None) -> Tensor:
    """The weights of an embedding or of a vocabulary head: (token ids, hidden size)."""
    weight = getattr(layer, "weight", None)
    assert isinstance(weight, Tensor), "a language model has an embedding and a vocabulary head"
    return weight


def reads_every_id(trunk: PreTrainedModel, rows: int) -> PreTrainedModel:
    """The trunk with an embedding for every id that the policy may write: zeros for those that no token has.

    Vocabularies are often padded to a round number, and to another one in another size of the same family.
    """
    present = trunk.get_input_embeddings()
    weight = weight_of(present)
    if weight.shape[0] < rows:
        more = torch.zeros(rows - weight.shape[0], weight.shape[1])
        padded: Any = nn.utils.skip_init(
            nn.Embedding, rows, weight.shape[1], padding_idx=getattr(present, "padding_idx", None)
        )
        padded.load_state_dict({"weight": torch.cat([weight.detach(), more])})
        trunk.set_input_embeddings(padded)
        trunk.config.get_text_config().vocab_size = rows
    return trunk
