"""Vocabularies as files have them: which id a token has, told without loading a tokenizer."""

import json
from collections.abc import Mapping
from typing import Any

from bench.config_models import Model, TinyModel, character_vocabulary, local_path


def vocabulary_of(model: Model, alphabet: str, *, added: bool) -> dict[str, int] | None:
    """Ids by token, where they can be told from a file: not for a hub name, nor for a tokenizer of another format."""
    if isinstance(model, TinyModel):
        return {token: number for number, token in enumerate(character_vocabulary(alphabet))}
    folder = local_path(model)
    if folder is None or model.gguf_file is not None or not (folder / "tokenizer.json").is_file():
        return None
    try:
        data: Any = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        vocabulary = data["model"]["vocab"]
        if isinstance(vocabulary, list):  # with scores, in the order of the ids
            vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
        more = {token["content"]: token["id"] for token in data["added_tokens"]} if added else {}
        return {**vocabulary, **more}
    except (ValueError, KeyError, TypeError, OSError):
        return None  # loading the tokenizer will say what is wrong with the file


def other_tokens(policy: Mapping[str, int], own: Mapping[str, int]) -> list[tuple[str, int]]:
    """The policy's tokens, with their ids, that have another id or none in a vocabulary that may have more."""
    return [(token, number) for token, number in policy.items() if own.get(token) != number]
