"""Which language model: a tiny one that the suite makes, or any that transformers can load, by name or path."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from bench import fingerprint
from bench.section import Count, Section

PromptFormat = Literal["auto", "chat", "plain"]
PAD, END, UNKNOWN = "<pad>", "<end>", "<unk>"


class TinyModel(Section):
    """A small Llama with a character tokenizer, made by the suite as an ordinary Hugging Face checkpoint."""

    kind: Literal["tiny"] = "tiny"
    hidden_size: Count = 64
    num_layers: Count = 2
    num_heads: Count = 4
    intermediate_size: Count = 192
    max_positions: Count = 64
    """Longest prompt and completion together, in tokens (one token is one character)."""

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        # Rotary positions turn pairs of numbers within each head.
        pairs = 2 * self.num_heads
        if self.hidden_size % pairs:
            raise ValueError(f"hidden_size is {self.hidden_size}, must be a multiple of 2 * num_heads = {pairs}")
        return self


class PretrainedModel(Section):
    """Any causal language model that transformers can load."""

    kind: Literal["pretrained"] = "pretrained"
    path: str
    """Name on the hub, or a folder."""
    revision: str | None = None
    """Branch, tag or commit on the hub."""
    gguf_file: str | None = None
    """Name of a GGUF file in that folder or hub repository; it is dequantised on loading."""
    prompt_format: PromptFormat = "auto"
    """`chat` applies the tokenizer's template, `plain` is the bare text, `auto` is `chat` where there is a template."""


Model = Annotated[TinyModel | PretrainedModel, Field(discriminator="kind")]


def character_vocabulary(alphabet: str) -> list[str]:
    """The tokens of a tiny model, by their ids: one a character, after three special ones."""
    return [PAD, END, UNKNOWN, *dict.fromkeys(alphabet)]


def local_path(model: PretrainedModel) -> Path | None:
    """The model's folder on this machine; None where the model is a name on the hub."""
    path = Path(model.path).expanduser()
    # A suffix alone says nothing: Qwen2.5-0.5B has one. A hub name has at most one slash.
    is_file_name = path.suffix in (".gguf", ".safetensors", ".bin", ".json", ".pt")
    looks_local = model.path.startswith((".", "/", "~")) or model.path.count("/") > 1 or is_file_name
    return path if looks_local or path.exists() else None


def model_digest(model: PretrainedModel) -> str:
    """The content of a local model, or the name of one on the hub."""
    folder = local_path(model)
    if folder is None:
        return model.path
    if model.gguf_file is not None:
        return fingerprint.file_digest(folder / model.gguf_file)
    return fingerprint.folder_digest(folder)
