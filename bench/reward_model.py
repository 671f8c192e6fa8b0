"""A reward model at work: the score of a prompt with its completion, read at the token where transformers reads it.

transformers' sequence classifiers of decoders read their head at the last token that is not padding, whatever stands
there. Sequences are cut after that token here, so the packed pass, which computes each prompt once, gives what the
model's own forward pass gives; every other architecture goes through that forward pass.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel
from transformers import PreTrainedTokenizerBase as Tokenizer

from bench import processes
from bench.checkpoint import weights_digest
from bench.checks_reward_model import outputs_mistake, vocabulary_line, vocabulary_mistake
from bench.compute import passes
from bench.config import Run
from bench.config_compute import Compute
from bench.config_reward_model import PretrainedReward, TrainedReward
from bench.embeddings import reads_every_id, rows_of
from bench.fingerprint import folder_digest
from bench.generate import ContextTooSmall
from bench.instruments import Instruments
from bench.learner import microbatches
from bench.models import LanguageModel, ModelUnavailable, base_of, refuse_surplus_tokens
from bench.packing import packed_states, packs
from bench.policy import Sequences, pad_right
from bench.prepare import Start
from bench.prompting import prompt_texts
from bench.rollout import Graded, Group
from bench.scoring import by_parts
from bench.store import write_json

RECORD = "reward_model.json"
Row = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of a prompt and of the completion after it, up to the token where the score is read; neither is empty."""


@dataclass(frozen=True)
class Judge:
    """The run's reward model, on its device and frozen."""

    run: Run
    config: PretrainedReward | TrainedReward
    network: PreTrainedModel
    tokenizer: Tokenizer
    about: Mapping[str, Any]
    """What it is and how it came to be, for provenance and `reward_model.json`."""

    def __call__(self, groups: Sequence[Group]) -> list[float]:
        """The score of each completion as it enters the reward: standardised and cut where the run says so.

        Equal completions of equal prompts are scored once, so they tie exactly. Processes share the passes.
        """
        rows = [row for group in groups for row in self._rows(group)]
        distinct = list(dict.fromkeys(rows))
        if not distinct:
            return []
        raw = self._scored(distinct).double()
        score = (raw - self.about.get("score_mean", 0.0)) / self.about.get("score_std", 1.0)
        if self.config.clip is not None:
            score = score.clamp(-self.config.clip, self.config.clip)
        known = dict(zip(distinct, score.tolist(), strict=True))
        return [known[row] for row in rows]

    def _scored(self, rows: Sequence[Row]) -> Tensor:
        """The head's output for each row, float32, on the CPU."""
        longest = max(len(prompt) + len(completion) for prompt, completion in rows)
        if self.context is not None and longest > self.context:
            raise ContextTooSmall(
                f"reward.model: it has {self.context} positions, and a prompt with its completion takes {longest} "
                "tokens; lower rollout.max_completion_tokens, or give one with a longer context"
            )
        pad, packed = pad_of(self.network), scores_packed(self.network)
        prompts, completions = [prompt for prompt, _ in rows], [completion for _, completion in rows]
        sequences = Sequences.of(prompts, completions, pad or 0).to(self.run.device)
        parts = microbatches(range(len(rows)), sequences, self.run.optimizer, packed=packed)
        if pad is None and not packed:
            parts = [[row] for part in parts for row in part]  # its own pass then takes one row at a time
        # Without a backward pass checkpointing would only put its layers into train mode, so it is left off.
        compute = Compute(autocast=self.run.compute.autocast)
        with torch.inference_mode(), passes(compute, self.run.device, self.network):
            scores = by_parts(self.network, partial(_column, self.network, self._segments), sequences, parts)
        return scores[:, 0].cpu()

    @cached_property
    def context(self) -> int | None:
        """Its largest number of positions, where it states one."""
        return LanguageModel(self.network, self.tokenizer, "plain").context

    def _rows(self, group: Group) -> list[Row]:
        pad = pad_of(self.network)
        if isinstance(self.config, TrainedReward) or self.config.tokens == "policy":
            return [row_of(group.prompt_ids, member.completion.token_ids, pad) for member in group.members]
        (prompt,) = prompt_texts(self.run.task, [group.problem], self.run.prompt)
        return [row_of(*written_anew(self.tokenizer, prompt, member), pad) for member in group.members]

    @cached_property
    def _segments(self) -> bool:
        """Whether the network is told which tokens are the prompt's, as BERT is of a pair of texts."""
        own = isinstance(self.config, PretrainedReward) and self.config.tokens == "own"
        paired = not self.tokenizer.chat_template and self.tokenizer.sep_token is not None
        return own and paired and getattr(self.network.config, "type_vocab_size", 0) > 1


def pad_of(network: PreTrainedModel) -> int | None:
    """The token that the network takes for padding, where it has one."""
    return getattr(network.config.get_text_config(), "pad_token_id", None)


def row_of(prompt: Sequence[int], completion: Sequence[int], pad: int | None) -> Row:
    """The tokens up to the last that is not padding, at which the score is read.

    A model whose padding is its end token so reads the token before the end, as it did when it was trained.
    """
    ids = (*prompt, *completion)
    end = next((i for i in range(len(ids), 1, -1) if ids[i - 1] != pad), 2)
    start = min(len(prompt), end - 1)
    return tuple(ids[:start]), tuple(ids[start:end])


def written_anew(tokenizer: Tokenizer, prompt: str, member: Graded) -> tuple[list[int], list[int]]:
    """Prompt and completion as the reward model's own tokenizer writes them: by its chat template, which ends the
    answer whether the policy did or not; as a pair where it has a separator; else one after the other.

    Returns:
        Token ids of the first segment of a pair and of the second; of one text, all but the last, and the last.

    Raises:
        ModelUnavailable: the chat template, a program of its author's, fails.
    """
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": member.text}]
        try:
            text = str(tokenizer.apply_chat_template(turns, tokenize=False))
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise ModelUnavailable(f"reward.model.tokens: own given, but its chat template fails: {reason}") from error
        ids: Any = tokenizer(text, add_special_tokens=False)["input_ids"]
    elif tokenizer.sep_token is not None:
        pair = tokenizer(prompt, member.text, return_token_type_ids=True)
        ids, types = list(pair["input_ids"]), list(pair["token_type_ids"])
        if 1 in types:
            return ids[: types.index(1)], ids[types.index(1) :]
    else:
        ids = tokenizer(prompt + member.text)["input_ids"]
        ends = member.completion.terminated and isinstance(tokenizer.eos_token_id, int)
        ids = [*ids, tokenizer.eos_token_id] if ends else ids
    return list(ids[:-1]), list(ids[-1:])


def scores_packed(network: PreTrainedModel) -> bool:
    """Whether packed passes score as the network's own forward pass does: a tested decoder with a plain linear head."""
    return packs(network) and type(getattr(network, "score", None)) is nn.Linear


def scores_of(network: PreTrainedModel, sequences: Sequences, segments: bool = False) -> Tensor:
    """The head's output at the last token of each row: float32 (rows,), with its gradient.

    Args:
        sequences: rows that end where the score is read, as `row_of` cuts them.
        segments: tell the network that the prompt is the first text of a pair and the completion the second.
    """
    if scores_packed(network):
        layout = sequences.layout_with_last
        states = packed_states(base_of(network), layout)[layout.last]
        # Autocast would round a score, which nothing averages, to three digits.
        with torch.autocast(states.device.type, enabled=False):
            return getattr(network, "score")(states.float()).squeeze(-1)
    rows = [(*prompt, *own) for prompt, own in zip(sequences.prompts, sequences.completions, strict=True)]
    lengths = torch.tensor([len(row) for row in rows])
    ids = pad_right(rows, sequences.pad_id)
    mask = (torch.arange(ids.shape[1])[None, :] < lengths[:, None]).long()
    inputs = {"input_ids": ids, "attention_mask": mask}
    if segments:
        first = torch.tensor(sequences.prompt_lengths)
        inputs["token_type_ids"] = (torch.arange(ids.shape[1])[None, :] >= first[:, None]).long() * mask
    output = network(**{name: tensor.to(sequences.device) for name, tensor in inputs.items()})
    return output.logits[:, 0].float()


def _column(network: PreTrainedModel, segments: bool, sequences: Sequences) -> Tensor:
    return scores_of(network, sequences, segments)[:, None]


# Loading


def judge_of(
    run: Run, start: Start, folder: Path | None = None, instruments: Instruments | None = None
) -> Judge | None:
    """The run's reward model, loaded, checked against the policy and frozen; None where the run has none.

    Args:
        start: the policy, whose tokens the reward model must read.
        folder: the run's, which is given the record.
        instruments: whose memory meter learns whose weights these are.

    Raises:
        ModelUnavailable: it cannot be loaded, or does not fit; the message names the knob.
        PreparationFailed: it cannot be trained.
    """
    config = run.reward.model
    if config is None:
        return None
    if isinstance(config, TrainedReward):
        from bench.train_reward_model import trained_reward_model

        path, about = trained_reward_model(run, config, start)
        about = {"path": str(path), **about}
        network, tokenizer = load_reward_model(str(path), None)
        if not config.standardise:
            about = {name: value for name, value in about.items() if name not in ("score_mean", "score_std")}
    else:
        network, tokenizer = load_reward_model(config.path, config.revision)
        local = Path(config.path).expanduser()
        about = {"path": config.path, "revision": config.revision, "tokens": config.tokens}
        about |= {"folder_sha256": folder_digest(local)} if local.is_dir() else {}
        if config.tokens == "policy":
            _check_vocabulary(config, start.model, network, tokenizer)
        else:
            refuse_surplus_tokens(f"reward.model.path: {config.path}", network, tokenizer)
    about = {"kind": config.kind, "formula": run.reward.formula(), **about, "weights_sha256": weights_digest(network)}
    about["num_parameters"] = sum(parameter.numel() for parameter in network.parameters())
    processes.agree("the reward model", about["weights_sha256"])
    if isinstance(config, PretrainedReward) and config.tokens == "policy":
        # An id that no token has may be sampled too, where the policy's vocabulary is padded further.
        reads_every_id(base_of(network), rows_of(start.model.network))
    network = network.requires_grad_(False)
    nn.Module.to(network, run.device)
    if instruments is not None:
        instruments.memory.own("reward_model", network)
    if folder is not None and processes.is_main():
        write_json(folder / RECORD, about)
    return Judge(run, config, network, tokenizer, about)


def load_reward_model(path: str, revision: str | None) -> tuple[PreTrainedModel, Tokenizer]:
    """A sequence classifier with one output and its tokenizer, in float32, without dropout.

    Raises:
        ModelUnavailable: it is not there, is none, has another number of outputs, or lacks weights; one line.
    """
    source = {"revision": revision} if revision else {}
    expanded = Path(path).expanduser()
    place = str(expanded) if expanded.exists() else path
    where = f"reward.model.path: {path}"
    try:
        config: Any = AutoConfig.from_pretrained(place, **source)
        mistake = outputs_mistake(config.num_labels, config.architectures)
        if mistake is not None:
            raise ModelUnavailable(f"{where} {mistake}")
        tokenizer = AutoTokenizer.from_pretrained(place, **source)
        loaded: Any = AutoModelForSequenceClassification.from_pretrained(
            place, config=config, dtype=torch.float32, output_loading_info=True, **source
        )
    except ModelUnavailable:
        raise
    except Exception as error:  # a broken checkpoint can fail in any way of the libraries that read it
        reason = " ".join(str(error).split())[:500]
        raise ModelUnavailable(f"{where} cannot be loaded: {reason}") from error
    network, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        raise ModelUnavailable(f"{where} lacks the weights of {', '.join(missing[:3])}, so its scores would be random")
    odd = next((name for name, weight in network.named_parameters() if not bool(weight.isfinite().all())), None)
    if odd is not None:
        raise ModelUnavailable(f"{where} has weights that are no numbers, such as in {odd}: its file is broken")
    return network.eval(), tokenizer


def _check_vocabulary(
    config: PretrainedReward, policy: LanguageModel, network: PreTrainedModel, tokenizer: Tokenizer
) -> None:
    """Raises ModelUnavailable unless every token of the policy is the same token to the reward model."""
    mistake = vocabulary_mistake(policy.tokenizer.get_vocab(), tokenizer.get_vocab())
    rows = getattr(network.get_input_embeddings(), "num_embeddings", math.inf)
    highest = max(policy.tokenizer.get_vocab().values())
    if mistake is None and rows <= highest:
        mistake = f"it reads {rows} token ids, and the policy's go up to {highest}"
    if mistake is not None:
        raise ModelUnavailable(vocabulary_line(config.path, mistake))
