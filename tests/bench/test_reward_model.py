"""A reward model's score: where it is read, that packing changes nothing, and what becomes of it in the reward."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    PreTrainedConfig,
    Qwen2Config,
)

from bench.config import Run, TinyModel
from bench.generate import Completion, ContextTooSmall
from bench.glossary import METRICS
from bench.models import LanguageModel, ModelUnavailable, create_tiny
from bench.policy import Sequences
from bench.prepare import Start
from bench.reward_model import Judge, judge_of, row_of, scores_of, scores_packed, written_anew
from bench.rewards import Rewarder, Sample, above_their_group
from bench.rollout import Graded, Group
from bench.rollout_metrics import imperfection_metrics, reward_model_metrics
from bench.train_reward_model import with_scalar_head
from tasks.parts.problem import Grade, Problem

MakeRun = Callable[..., Run]
NAN = math.nan
TINY = TinyModel(hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, max_positions=16)
ALPHABET = "0123456789+="
IDS: dict[str, Any] = {"vocab_size": 29, "pad_token_id": 0, "initializer_range": 0.4}
SMALL: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 32, **IDS,
}  # fmt: skip
PLAIN = {"warm_start": None, "evaluation.start": False}


def policy(seed: int = 0) -> LanguageModel:
    return create_tiny(TINY, ALPHABET, seed)


def saved(folder: Path, model: LanguageModel) -> Path:
    """A reward model's folder as any tool would write it: a head on another start's trunk, and the same tokenizer."""
    with_scalar_head(model, 7).save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


def group_of(verdicts: Sequence[bool | None], scores: Sequence[float | None], position: int = 0) -> Group:
    members = tuple(
        Graded(
            completion=Completion((5, 1), True, (0.0, 0.0)),
            text="",
            grade=Grade(correct=bit, answer_key=None, method="end", parsed=True, truncated=False),
            reward=NAN,
            observed=None,
            score=score,
        )
        for bit, score in zip(verdicts, scores, strict=True)
    )
    return Group(Problem(id=f"p/{position}", prompt="", gold=""), (3,), members, 0, position)


def test_a_row_ends_at_the_last_token_that_is_not_padding() -> None:
    assert row_of((5, 6), (7, 1), 0) == ((5, 6), (7, 1))
    assert row_of((5, 6), (7, 1, 1), 1) == ((5, 6), (7,))
    assert row_of((5, 6), (1,), 1) == ((5,), (6,))
    assert row_of((5, 6), (1,), None) == ((5, 6), (1,))
    assert row_of((1, 1), (1,), 1) == ((1,), (1,)), "nothing but padding: any two tokens"


@pytest.mark.parametrize("pad", [0, 1])
def test_the_packed_score_is_the_one_of_transformers(pad: int) -> None:
    """Also where padding is the end token, as in many a tokenizer: then the score stands before the end."""
    network = with_scalar_head(policy(), 0)
    network.config.pad_token_id = pad
    assert scores_packed(network)
    completions = [(5, 1), (6, 7, 8, 1), (9,), (4, 4, 4)]
    rows = [row_of((3, 4, 5), completion, pad) for completion in completions]
    sequences = Sequences.of([prompt for prompt, _ in rows], [own for _, own in rows], pad)
    with torch.inference_mode():
        packed = scores_of(network, sequences)
        whole = [network(input_ids=torch.tensor([[3, 4, 5, *own]])).logits[0, 0] for own in completions]
    assert packed.tolist() == pytest.approx([float(score) for score in whole], abs=1e-6)
    assert len(set(packed.tolist())) == 4


@pytest.mark.parametrize(
    ("config", "is_packed"),
    [(GPT2Config(n_embd=16, n_layer=2, n_head=4, n_positions=32, **IDS), True), (GPTNeoXConfig(**SMALL), True),
     (Qwen2Config(**SMALL, num_key_value_heads=2), True),
     (Gemma2Config(**SMALL, num_key_value_heads=2, head_dim=4), False)],
    ids=lambda value: getattr(value, "model_type", ""),
)  # fmt: skip
def test_a_head_on_any_decoder_is_read_at_the_rows_last_token(config: PreTrainedConfig, is_packed: bool) -> None:
    """Rows of unequal length together, packed or padded, against transformers' own pass over each alone."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        causal = AutoModelForCausalLM.from_config(config).float().eval()
    network = with_scalar_head(replace(policy(), network=causal), 0)
    assert scores_packed(network) == is_packed
    rows = [((3, 4, 5), (6,)), ((3, 4, 5), (7, 8, 9)), ((5, 6), (10, 11, 12, 13))]
    with torch.inference_mode():
        found = scores_of(network, Sequences.of([p for p, _ in rows], [c for _, c in rows], 0))
        alone = [float(network(input_ids=torch.tensor([[*p, *c]])).logits) for p, c in rows]
    assert found.tolist() == pytest.approx(alone, abs=1e-5)
    assert len({round(score, 4) for score in alone}) == 3


def test_an_encoder_scores_alike_alone_and_beside_others() -> None:
    """Any other architecture goes through its own forward pass, and padding must not show."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config: Any = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        config |= {"intermediate_size": 16, "num_labels": 1, "pad_token_id": 0}
        network = BertForSequenceClassification(BertConfig(**config)).eval()
    assert not scores_packed(network)
    rows = [((3, 4), (5,)), ((6, 7, 8), (9, 10, 11))]
    with torch.inference_mode():
        both = scores_of(network, Sequences.of([p for p, _ in rows], [c for _, c in rows], 0))
        alone = [scores_of(network, Sequences.of([p], [c], 0))[0] for p, c in rows]
    assert both.tolist() == pytest.approx([float(score) for score in alone], abs=1e-6)


def judge_for(run: Run, model: LanguageModel) -> Judge:
    judge = judge_of(run, Start(model, {}))
    assert judge is not None
    return judge


def test_the_judge_reads_the_policys_tokens_in_any_microbatches(tiny_run: MakeRun, tmp_path: Path) -> None:
    """The very score that transformers gives the saved folder for the very ids; equal completions tie exactly; the cut
    is at the cut."""
    model = policy()
    path = saved(tmp_path / "rm", policy(1))
    knobs = {**PLAIN, "reward.model.kind": "pretrained", "reward.model.path": str(path)}
    group = group_of([True] * 3, [None] * 3)
    long = replace(group.members[0], completion=replace(group.members[0].completion, token_ids=(9, 8, 7, 1)))
    groups = [replace(group, members=(*group.members, long)), replace(group, prompt_ids=(4, 5, 6))]
    plain = judge_for(tiny_run("grpo", **knobs), model)(groups)
    small = judge_for(tiny_run("grpo", **{**knobs, "optimizer.microbatch_sequences": 1}), model)(groups)
    assert small == pytest.approx(plain, abs=1e-6)
    network: Any = AutoModelForSequenceClassification.from_pretrained(path)
    ids = [[*g.prompt_ids, *m.completion.token_ids] for g in groups for m in g.members]
    with torch.inference_mode():
        expected = [float(network(input_ids=torch.tensor([own])).logits) for own in ids]
    assert plain == pytest.approx(expected, abs=1e-6)
    assert plain[0] == plain[1] == plain[2]
    cut = min(abs(score) for score in plain)
    clipped = judge_for(tiny_run("grpo", **{**knobs, "reward.model.clip": cut}), model)(groups)
    assert [abs(score) for score in clipped] == pytest.approx([cut] * 7)
    judge = judge_for(tiny_run("grpo", **knobs), model)
    assert judge([]) == []
    judge.network.config.max_position_embeddings = 4
    with pytest.raises(ContextTooSmall, match="it has 4 positions, and a prompt with its completion takes 5 tokens"):
        judge(groups)


def test_a_judge_with_other_tokens_reads_the_text_in_its_own(tiny_run: MakeRun, tmp_path: Path) -> None:
    """The same characters under other numbers: the score is the one of the text."""
    other = create_tiny(TINY, "=+9876543210", 1)
    path = saved(tmp_path / "rm", other)
    knobs = {**PLAIN, "reward.model.kind": "pretrained", "reward.model.path": str(path), "reward.model.tokens": "own"}
    group = group_of([True, False], [None] * 2)
    members = tuple(replace(member, text=text) for member, text in zip(group.members, "34", strict=True))
    groups = [replace(group, problem=Problem(id="p", prompt="1+2=", gold="3"), members=members)]
    found = judge_for(tiny_run("grpo", **knobs), policy())(groups)
    network: Any = AutoModelForSequenceClassification.from_pretrained(path)
    ids = [other.encode_prompt("1+2=") + other.encode_completion(text) for text in "34"]
    with torch.inference_mode():
        expected = [float(network(input_ids=torch.tensor([own])).logits) for own in ids]
    assert found == pytest.approx(expected, abs=1e-6)


def test_its_own_tokenizer_writes_prompt_and_completion_anew() -> None:
    model = policy()
    (member,) = group_of([True], [None]).members
    written = written_anew(model.tokenizer, "1+2=", replace(member, text="3"))
    assert model.tokenizer.convert_ids_to_tokens([*written[0], *written[1]]) == ["1", "+", "2", "=", "3", "<end>"]
    model.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{{ '=' if m.role == 'user' }}{% endfor %}"
    chat = written_anew(model.tokenizer, "1+2", replace(member, text="3"))
    assert model.tokenizer.convert_ids_to_tokens([*chat[0], *chat[1]]) == ["1", "+", "2", "=", "3"]


def test_a_pair_of_texts_is_told_apart_as_transformers_tells_it(tiny_run: MakeRun, tmp_path: Path) -> None:
    """BERT reads which tokens are the prompt's beside the tokens."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"0123456789+="]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizer(str(tmp_path / "vocab.txt"))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config: Any = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        config |= {"intermediate_size": 16, "num_labels": 1, "pad_token_id": 0, "initializer_range": 1.0}
        network = BertForSequenceClassification(BertConfig(**config)).eval()
    network.save_pretrained(tmp_path / "rm")
    tokenizer.save_pretrained(tmp_path / "rm")
    knobs = {**PLAIN, "reward.model.kind": "pretrained", "reward.model.tokens": "own"}
    run = tiny_run("grpo", **{**knobs, "reward.model.path": str(tmp_path / "rm")})
    group = group_of([True, False], [None] * 2)
    texts = ("3", "4 5")
    members = tuple(replace(member, text=text) for member, text in zip(group.members, texts, strict=True))
    problem = Problem(id="p", prompt="1 + 2 =", gold="3")
    found = judge_for(run, policy())([replace(group, problem=problem, members=members)])
    with torch.inference_mode():
        inputs = tokenizer(["1 + 2 ="] * 2, list(texts), return_tensors="pt", padding=True)
        expected = network(**inputs).logits[:, 0]
        blind = network(**{name: own for name, own in inputs.items() if name != "token_type_ids"}).logits[:, 0]
    assert found == pytest.approx(expected.tolist(), abs=1e-6)
    assert float((expected - blind).abs().min()) > 1e-3


def test_a_reward_model_that_does_not_fit_is_refused_by_name(tiny_run: MakeRun, tmp_path: Path) -> None:
    """What the configuration's check cannot see, as of a hub's model, is said when it is loaded."""
    path = saved(tmp_path / "rm", policy())
    (path / "model.safetensors").unlink()
    run = tiny_run("grpo", **PLAIN, **{"reward.model.kind": "pretrained", "reward.model.path": str(path)})
    with pytest.raises(ModelUnavailable, match=r"reward\.model\.path: .* cannot be loaded"):
        judge_for(run, policy())
    create = policy().network
    create.save_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    config |= {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "x"}, "label2id": {"x": 0}}
    (path / "config.json").write_text(json.dumps(config))
    unknown = tiny_run("grpo", **PLAIN, **{"reward.model.kind": "pretrained", "reward.model.path": "nobody/no-model"})
    with pytest.raises(ModelUnavailable, match=r"reward\.model\.path: nobody/no-model cannot be loaded"):
        judge_for(unknown, policy())
    with pytest.raises(ModelUnavailable, match=r"lacks the weights of score\.weight, so its scores would be random"):
        judge_for(run, policy())


# In the reward


def sampled(scores: Sequence[float], verdicts: Sequence[bool], size: int = 2) -> list[Sample]:
    group = group_of(verdicts, scores)
    return [
        Sample(problem=group.problem, text="12", grade=m.grade, round=0, position=i // size, member=i % size,
               score=m.score)
        for i, m in enumerate(group.members)
    ]  # fmt: skip


def test_verdict_form_and_score_combine_with_weights(tiny_run: MakeRun, tmp_path: Path) -> None:
    """The verdict stays what selection reads; a score that is no number makes the completion unscorable."""
    path = saved(tmp_path / "rm", policy())
    knobs = {"reward.model.kind": "pretrained", "reward.model.path": str(path), "reward.model.weight": -0.5}
    run = tiny_run("grpo", **knobs, **{"reward.format": 0.25, "reward.correct": 2.0})
    worths = Rewarder(run).worths(sampled([4.0, 1.0, NAN], [True, False, True]))
    assert [(w.reward, w.observed) for w in worths[:2]] == [(2 + 0.25 - 2, True), (0.25 - 0.5, False)]
    assert math.isnan(worths[2].reward)
    assert worths[2].observed is None
    assert run.reward.formula() == "2 if right, 0 if wrong + 0.25 x form (task) + -0.5 x reward model (pretrained)"


def test_a_score_alone_is_right_where_it_beats_its_group(tiny_run: MakeRun, tmp_path: Path) -> None:
    """The verdict reaches neither reward nor observed bit; in a group of equal scores nothing is right."""
    path = saved(tmp_path / "rm", policy())
    knobs = {"reward.source": "model", "reward.model.kind": "pretrained", "reward.model.path": str(path)}
    run = tiny_run("dapo", **knobs)
    scores = [3.0, 1.0, -5.0, -4.0, 2.0, 2.0 + 1e-9]
    for verdicts in ([True] * 6, [False] * 6):
        worths = Rewarder(run).worths(sampled(scores, verdicts))
        assert [w.reward for w in worths] == scores
        assert [w.observed for w in worths] == [True, False, False, True, False, False]
    assert above_their_group(sampled([1.0, NAN], [True, True]), [1.0, NAN]) == [False, None]


def test_metrics_set_score_against_verdict(tiny_run: MakeRun, tmp_path: Path) -> None:
    groups = [group_of([True, False, None], [2.0, 1.0, 9.0]), group_of([True, False, False], [0.0, 0.0, 1.0], 1)]
    found = reward_model_metrics(groups, 2.0)
    # Graded: 2, 1, 0, 0, 1 with verdicts 1, 0, 1, 0, 0.
    assert found["reward_model/mean"] == pytest.approx(13 / 6)
    assert found["reward_model/correct"] == 1.0
    assert found["reward_model/wrong"] == pytest.approx(2 / 3)
    assert found["reward_model/correlation"] == pytest.approx(0.2182, abs=1e-4)
    assert found["reward_model/pair_accuracy"] == pytest.approx((1 + 0.25) / 2)
    assert found["reward_model/clip_frac"] == pytest.approx(2 / 6)
    assert set(found) <= set(METRICS)
    path = saved(tmp_path / "rm", policy())
    run = tiny_run("grpo", **{"reward.model.kind": "pretrained", "reward.model.path": str(path)})
    assert set(imperfection_metrics(run.reward, groups)) == set(found) - {"reward_model/clip_frac"}
    without = reward_model_metrics([group_of([True], [None])], None)
    assert all(math.isnan(value) for value in without.values())
