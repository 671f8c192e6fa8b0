"""A fixed preference set against TRL's DPOTrainer: the same rows give the same tokens and the same loss."""

import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.axes.batch import PairTotals
from bench.catalog import load_preset
from bench.config import TinyModel
from bench.learn_pairs import pair_batch, sides_of, summed_logps
from bench.models import LanguageModel, create_tiny
from bench.pairs import Pair
from bench.preference_data import parsed
from bench.preference_tokens import encoded_pairs

pytestmark = [pytest.mark.reference, pytest.mark.slow]
ALPHABET = "0123456789+=abcdefghijklmnopqrstuvwxyz.? |\n"
BREAK = "{{ '\n' if not loop.last or add_generation_prompt else '' }}"
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}|{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    f"{BREAK}{{% endfor %}}"
    "{% if add_generation_prompt %}assistant|{% endif %}"
)
STANDARD = [
    {"prompt": "1+2=", "chosen": "3", "rejected": "12"},
    {"prompt": "the sky is", "chosen": " blue.", "rejected": " green. is it?"},
    {"prompt": "q", "chosen": "abc", "rejected": "abd<end>"},
]
IMPLICIT = [{name: row["prompt"] + row[name] for name in ("chosen", "rejected")} for row in STANDARD]
CONVERSATIONS = [
    {
        "prompt": [{"role": "user", "content": row["prompt"]}],
        **{name: [{"role": "assistant", "content": row[name].replace("<end>", "")}] for name in ("chosen", "rejected")},
    }
    for row in STANDARD
]
SPOKEN = [{name: row["prompt"] + row[name] for name in ("chosen", "rejected")} for row in CONVERSATIONS]

FORMATS = ["standard", "implicit", "conversations", "spoken"]

Rows = Sequence[Mapping[str, Any]]


@pytest.fixture(scope="module")
def models() -> tuple[LanguageModel, LanguageModel]:
    """A policy and the reference that it has moved away from."""
    reference = create_tiny(TinyModel(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16), ALPHABET, 0)
    reference.tokenizer.chat_template = TEMPLATE
    policy = LanguageModel(deepcopy(reference.network), reference.tokenizer, "chat")
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=noise)
    return policy, reference


def trl_step(rows: Rows, models: tuple[LanguageModel, LanguageModel], loss: Mapping[str, Any], folder: Path) -> Any:
    """TRL's tokens of each row, and its loss on all of them at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trl: Any = pytest.importorskip("trl")
        from datasets import Dataset, disable_progress_bars

        disable_progress_bars()
        policy, reference = models
        settings = {"output_dir": str(folder), "use_cpu": True, "bf16": False, "report_to": "none", **loss}
        trainer = trl.DPOTrainer(
            model=deepcopy(policy.network),
            ref_model=deepcopy(reference.network),
            args=trl.DPOConfig(per_device_train_batch_size=len(rows), gradient_checkpointing=False, **settings),
            train_dataset=Dataset.from_list([dict(row) for row in rows]),
            processing_class=policy.tokenizer,
        )
        tokens = [Pair(*(tuple(row[f"{name}_ids"]) for name in ("prompt", "chosen", "rejected")))
                  for row in trainer.train_dataset]  # fmt: skip
        (batch,) = trainer.get_train_dataloader()
        with torch.no_grad():
            return tokens, float(trainer.compute_loss(trainer.model, batch))


def own_loss(pairs: Sequence[Pair], models: tuple[LanguageModel, LanguageModel], algorithm: str) -> float:
    """The suite's loss on the same pairs."""
    sides = sides_of(pairs, models[0].pad_id, torch.device("cpu"))
    totals = PairTotals(num_pairs=len(pairs), num_chosen_tokens=sum(len(pair.chosen) for pair in pairs))
    with torch.no_grad():
        policy, reference = (summed_logps(model.network, sides) for model in models)
        objective: Any = load_preset(algorithm).objective
        return float(objective.loss(pair_batch(pairs, policy, reference), totals).loss)


@pytest.mark.parametrize(
    ("algorithm", "loss"),
    [
        ("dpo", {"beta": 0.1, "loss_type": ["sigmoid"]}),
        ("dpo_norm", {"beta": 5.0, "loss_type": ["sigmoid_norm"]}),
        ("ipo", {"beta": 0.1, "loss_type": ["ipo"]}),
    ],
)
@pytest.mark.parametrize("rows", [STANDARD, IMPLICIT, CONVERSATIONS, SPOKEN], ids=FORMATS)
def test_the_loss_on_a_fixed_set_is_trls(
    rows: Rows,
    algorithm: str,
    loss: Mapping[str, Any],
    models: tuple[LanguageModel, LanguageModel],
    tmp_path: Path,
) -> None:
    made = encoded_pairs(models[0], parsed(rows, "x"), 64)
    tokens, theirs = trl_step(rows, models, loss, tmp_path)
    assert made.pairs == tokens
    ours = own_loss(made.pairs, models, algorithm)
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert abs(ours - 0.6931) > 1e-2


def test_where_a_template_writes_behind_its_end_token_trl_learns_that_too(
    models: tuple[LanguageModel, LanguageModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one known difference of conversations: ChatML's line break, which no policy ever comes to say."""
    monkeypatch.setattr(models[0].tokenizer, "chat_template", TEMPLATE.replace(BREAK, "{{ '\n' }}"))
    made = encoded_pairs(models[0], parsed(CONVERSATIONS, "x"), 64)
    tokens, _ = trl_step(CONVERSATIONS, models, {}, tmp_path)
    line_break: Any = models[0].tokenizer.convert_tokens_to_ids("\n")
    longer = [Pair(p.prompt_ids, (*p.chosen, line_break), (*p.rejected, line_break)) for p in made.pairs]
    assert tokens == longer
