"""Language models as ordinary Hugging Face checkpoints: made from scratch, or loaded by name, folder or GGUF file."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    modeling_gguf_pytorch_utils,
)

from bench.adapted_weights import adapted_layers, plain_state
from bench.config_models import (
    END,
    PAD,
    UNKNOWN,
    PretrainedModel,
    PromptFormat,
    TinyModel,
    character_vocabulary,
    local_path,
)
from bench.embeddings import weight_of
from bench.seeding import stream_key

# Loading and saving takes moments here; the suite shows progress where it matters.
transformers.utils.logging.disable_progress_bar()
# Its GGUF reader has a bar of its own, which knows nothing of that.
_gguf_reader: Any = modeling_gguf_pytorch_utils
_gguf_reader.tqdm = partial(_gguf_reader.tqdm, disable=True)

_BY_LENGTH = ("longrope", "dynamic")


class ModelUnavailable(RuntimeError):
    """A model cannot be loaded; the message names the knob and the reason."""


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model with its tokenizer, and how its prompts are written.

    The network is always in eval mode: dropout is off in generation, scoring and update alike, so that the first
    update's importance ratio is exactly 1.
    """

    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    prompt_format: str
    """`chat`: the tokenizer's chat template around one user turn; `plain`: the text itself."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Token ids that end a completion: the generation configuration's and the tokenizer's."""
        configured = self.network.generation_config.eos_token_id if self.network.generation_config else None
        ids = configured if isinstance(configured, list) else [configured]
        return tuple(dict.fromkeys(i for i in [self.tokenizer.eos_token_id, *ids] if isinstance(i, int)))

    @property
    def pad_id(self) -> int:
        """Filler for rectangular batches; masks come from lengths, so it may equal an end id."""
        pad = self.tokenizer.pad_token_id
        rows = weight_of(self.network.get_input_embeddings()).shape[0]
        return pad if isinstance(pad, int) and pad < rows else self.end_ids[0]

    @property
    def context(self) -> int | None:
        """Largest number of positions, where the configuration states one."""
        return context_of(self.network)

    def encode_prompt(self, prompt: str) -> list[int]:
        """Token ids of a prompt, ready for the completion to follow."""
        if self.prompt_format == "chat":
            turns = [{"role": "user", "content": prompt}]
            text = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
            return self._ids(str(text), add_special_tokens=False)
        return self._ids(prompt, add_special_tokens=True)

    def encode_completion(self, text: str) -> list[int]:
        """Token ids of a finished completion, its end token included."""
        return [*self._ids(text, add_special_tokens=False), self.end_ids[0]]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a completion without its special tokens."""
        options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return str(self.tokenizer.decode(list(token_ids), **options))

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: Any = self.tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
        return list(ids)


def context_of(network: PreTrainedModel) -> int | None:
    """Largest number of positions of a model with or without its head, where the configuration states one.

    Rotary embeddings that change with the longest sequence of a batch are held to the length up to which they do not:
    beyond it a completion's probability would depend on what it is computed beside.
    """
    config = network.config.get_text_config()
    stated = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    original = rope.get("original_max_position_embeddings") if rope.get("rope_type") in _BY_LENGTH else None
    return min((length for length in (stated, original) if length is not None), default=None)


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """One token a character of `alphabet`, as a tokenizer that every Hugging Face tool can load."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    symbols = character_vocabulary(alphabet)
    core = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(symbols)}, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token=PAD, eos_token=END, unk_token=UNKNOWN)


def create_tiny(config: TinyModel, alphabet: str, seed: int) -> LanguageModel:
    """A small randomly initialised Llama over the characters of `alphabet`; the same seed gives the same weights."""
    tokenizer = character_tokenizer(alphabet)
    symbols = character_vocabulary(alphabet)
    network = _tiny_llama(config, len(symbols), seed, symbols.index(END), symbols.index(PAD))
    return LanguageModel(network, tokenizer, "plain")


def create_tiny_trunk(config: TinyModel, vocabulary: int, seed: int) -> PreTrainedModel:
    """The same without a vocabulary head, for token ids below `vocabulary`."""
    return base_of(_tiny_llama(config, vocabulary, seed, None, None))


def _tiny_llama(config: TinyModel, vocabulary: int, seed: int, end: int | None, pad: int | None) -> LlamaForCausalLM:
    llama = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        max_position_embeddings=config.max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_key(seed, "model"))
        network = LlamaForCausalLM(llama)
    return network.float().eval()


def load_pretrained(config: PretrainedModel) -> LanguageModel:
    """Any causal language model of transformers, in float32: by hub name, from a folder, or from a GGUF file in it.

    Raises:
        ModelUnavailable: it is not there, cannot be reached, or is not a causal language model; one line.
    """
    network, tokenizer = _loaded(AutoModelForCausalLM, config, "model")
    if "past_key_values" not in inspect.signature(network.forward).parameters or _has_other_states(network):
        raise ModelUnavailable(
            f"model.path: {config.path} keeps no keys and values to sample with, only attention does"
        )
    written = config.prompt_format
    if written == "auto":
        written = "chat" if tokenizer.chat_template else "plain"
    model = LanguageModel(network, tokenizer, written)
    if written == "chat":
        _check_template(config, model)
    if not model.end_ids:
        raise ModelUnavailable(f"model.path: {config.path} has no end token: set eos_token in its tokenizer")
    refuse_surplus_tokens(f"model.path: {config.path}", network, tokenizer)
    return model


def refuse_surplus_tokens(what: str, network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ModelUnavailable where a tokenizer writes ids that its network has no embedding for.

    A padding token is never read, so one that was only added to the tokenizer is no matter.
    """
    rows = weight_of(network.get_input_embeddings()).shape[0]
    highest = max((number for number in tokenizer.get_vocab().values() if number != tokenizer.pad_token_id), default=0)
    if highest >= rows:
        raise ModelUnavailable(
            f"{what} reads {rows} token ids, and its tokenizer's go up to {highest}: it is another model's tokenizer, "
            "or tokens were added without resize_token_embeddings"
        )


def load_trunk(config: PretrainedModel, knob: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model without its head, in float32, whichever head it was saved with, and its tokenizer.

    Args:
        knob: where the configuration has it, for messages.

    Raises:
        ModelUnavailable: it is not there, cannot be reached, or reads tokens that come later; one line.
    """
    network, tokenizer = _loaded(AutoModel, config, knob)
    ids = torch.tensor([[0, 1, 2], [0, 1, 0]])
    try:
        with torch.no_grad():
            states = network(input_ids=ids, use_cache=False).last_hidden_state
    except Exception as error:  # a model for other things than text wants other inputs
        reason = " ".join(str(error).split())[:300]
        raise ModelUnavailable(f"{knob}.path: {config.path} does not read a row of tokens: {reason}") from error
    if not torch.allclose(states[0, :2], states[1, :2], atol=1e-5):
        raise ModelUnavailable(
            f"{knob}.path: {config.path} is not causal: what it makes of a token depends on later ones"
        )
    if _has_other_states(network):
        # The rows of a batch are padded on the left, and padding must not reach what follows.
        raise ModelUnavailable(
            f"{knob}.path: {config.path} has layers that are not attention, which padding would reach"
        )
    return network, tokenizer


def _loaded(kind: Any, config: PretrainedModel, knob: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model of one of transformers' automatic classes in float32 and eval mode, and its tokenizer."""
    source = {"revision": config.revision} if config.revision else {}
    if config.gguf_file:
        source["gguf_file"] = config.gguf_file
    try:
        path = local_path(config) or config.path
        tokenizer = AutoTokenizer.from_pretrained(path, **source)
        loaded: Any = kind.from_pretrained(path, dtype=torch.float32, output_loading_info=True, **source)
        network, report = loaded
    except Exception as error:  # a broken checkpoint can fail in any way of the libraries that read it
        reason = " ".join(str(error).split())[:500]
        raise ModelUnavailable(f"{knob}.path: {config.path} cannot be loaded: {reason}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelUnavailable(
            f"{knob}.path: {config.path} lacks the weights of {', '.join(missing[:3])} and would be random"
        )
    if config.gguf_file:
        # The weights are dequantised now; what still says otherwise would keep the model from being saved and loaded.
        delattr(network.config, "quantization_config")
        setattr(network, "hf_quantizer", None)
    return network.eval(), tokenizer


def _has_other_states(network: PreTrainedModel) -> bool:
    """Whether a layer keeps something else than keys and values between tokens, such as a convolution's inputs."""
    kinds = getattr(network.config.get_text_config(), "layer_types", None) or []
    selects = all(hasattr(layer, "batch_select_indices") for layer in DynamicCache(config=network.config).layers)
    return not selects or any("attention" not in kind or "linear" in kind for kind in kinds)


def _check_template(config: PretrainedModel, model: LanguageModel) -> None:
    """Raises ModelUnavailable unless the chat template can write a prompt."""
    where = f"model.prompt_format: chat asked for {config.path}"
    if not model.tokenizer.chat_template:
        raise ModelUnavailable(f"{where}, whose tokenizer has no chat template: give plain or auto, or set a template")
    try:
        model.encode_prompt("1+1=")
    except Exception as error:  # a template is a program of its author's, and fails in ways of its own
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ModelUnavailable(f"{where}, whose chat template fails ({reason}): mend it or give plain") from error


def load_folder(folder: Path, prompt_format: PromptFormat) -> LanguageModel:
    """A checkpoint that this suite saved."""
    return load_pretrained(PretrainedModel(kind="pretrained", path=str(folder), prompt_format=prompt_format))


def save_folder(model: LanguageModel, folder: Path, state: dict[str, torch.Tensor] | None = None) -> None:
    """Write an ordinary Hugging Face folder, with other weights than the network's own where `state` gives them; an
    adapter is merged into the weights that are written."""
    if state is None and adapted_layers(model.network):
        state = plain_state(model.network)
    model.network.save_pretrained(folder, state_dict=state)
    model.tokenizer.save_pretrained(folder)


def base_of(network: PreTrainedModel) -> PreTrainedModel:
    """The model without its vocabulary head."""
    base = network.base_model
    assert isinstance(base, PreTrainedModel), "a model of transformers is made of one"
    return base
