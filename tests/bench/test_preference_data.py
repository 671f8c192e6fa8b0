"""Fixed preference sets: the formats, what is wrong with a row in one sentence, and rows as token ids."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from algorithms.axes.preference import FixedPairs
from bench.config import Run, TinyModel
from bench.loading import ConfigError
from bench.models import LanguageModel, create_tiny
from bench.preference_data import Message, PreferenceSet, Preferred, parsed, read_set
from bench.preference_tokens import PairsUnavailable, encoded, encoded_pairs
from bench.rollout import NothingToLearn
from bench.train import execute

MakeRun = Callable[..., Run]
Row = Mapping[str, Any]
QUIET: dict[str, Any] = {
    "validation.every": 0, "validation.problems": 100, "validation.samples": 4,
    "evaluation.problems": 2, "evaluation.samples": 2, "evaluation.start": False, "meter.every": 0,
}  # fmt: skip
SUMS = [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(a + b + 1)} for a in range(4) for b in range(6)]
ALPHABET = "0123456789+=abcdefghijklmnopqrstuvwxyz.? |\n"
# As ChatML does, it writes a line break behind the end token; the prompt ends where the answer begins.
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}|{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant|{% endif %}"
)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    tiny = create_tiny(TinyModel(hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8), ALPHABET, 0)
    tiny.tokenizer.chat_template = TEMPLATE
    return tiny


def write(path: Path, rows: Sequence[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def mistake(*rows: Row) -> str:
    with pytest.raises(ValueError, match=r'^"x" given, but ') as error:
        parsed(rows, "x")
    return str(error.value).removeprefix('"x" given, but ')


# Formats


def test_the_four_formats_of_trl_and_the_repeated_prompt_are_read_alike() -> None:
    """The prompt is a column or what both sides begin with; a space before the answers is theirs, as TRL has it."""
    standard = [{"prompt": "sky is", "chosen": " blue.", "rejected": " green."}]
    implicit = [{"chosen": "sky is blue.", "rejected": "sky is green."}]
    expected = Preferred("sky is", " blue.", " green.")
    assert parsed(standard, "x") == PreferenceSet((expected,), implicit=False, num_rows=1, num_identical=0)
    assert parsed(implicit, "x") == PreferenceSet((expected,), implicit=True, num_rows=1, num_identical=0)
    sides = {"chosen": [assistant("blue")], "rejected": [assistant("green")]}
    whole = {name: [user("sky?"), *side] for name, side in sides.items()}
    turns = (Message("user", "sky?"),)
    spoken = Preferred(turns, (Message("assistant", "blue"),), (Message("assistant", "green"),))
    for row in ({"prompt": [user("sky?")], **sides}, whole, {"prompt": "sky?", **whole}):
        assert parsed([row], "x").rows == (spoken,)
        assert parsed([row], "x").conversational


def test_rows_with_the_same_sides_are_dropped_and_counted() -> None:
    same = {"prompt": "p", "chosen": "a", "rejected": "a"}
    data = parsed([same, {**same, "rejected": "b"}, same], "x")
    assert (len(data.rows), data.num_rows, data.num_identical) == (1, 3, 2)
    assert mistake(same, same) == "chosen and rejected are the same in all of its 2 rows"


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"question": "q", "choosen": "a"}, "it has no column chosen and rejected (is it choosen?): "
         "its columns are question, choosen; wanted are prompt, chosen and rejected, or chosen and rejected "
         "with the prompt inside both, each text or each a list of {role, content} messages"),
        ({"prompt": "p", "chosen": "", "rejected": "b"}, "row 0: chosen is empty"),
        ({"prompt": " ", "chosen": "a", "rejected": "b"}, "row 0: prompt is empty"),
        ({"prompt": "p", "chosen": 3, "rejected": "b"}, "row 0: chosen is 3, must be text or a list of messages"),
        ({"prompt": "p", "chosen": [], "rejected": "b"}, "row 0: chosen is a conversation without a message"),
        ({"prompt": "p", "chosen": "a", "rejected": "b", "tools": "[]"}, "its column tools is not supported: take it "
         "out of the data"),
        ({"chosen": "abc", "rejected": "xyz"}, "row 0: chosen and rejected share no beginning, which would be the "
         "prompt; give it in a column prompt"),
        ({"chosen": "abc", "rejected": "ab"}, "row 0: rejected is the beginning of chosen, so nothing of it is left "
         "behind the prompt"),
        ({"prompt": "other", "chosen": [user("u"), assistant("a")], "rejected": [user("u"), assistant("b")]},
         "row 0: the column prompt is no message of the beginning that chosen and rejected share"),
        ({"prompt": [user("u")], "chosen": "a", "rejected": "b"}, "row 0: the prompt is a conversation and chosen and "
         "rejected are text"),
        ({"prompt": [user("u")], "chosen": [assistant("a")], "rejected": "b"}, "row 0: one of chosen and rejected is "
         "text and the other a conversation"),
        ({"prompt": [user("u")], "chosen": [assistant("a")], "rejected": [{"role": "bot", "content": "b"}]},
         'row 0: a message of rejected has the role "bot", must be system, user, assistant'),
        ({"prompt": [user("u")], "chosen": [assistant("a")], "rejected": [{"from": "gpt", "value": "b"}]},
         "row 0: a message of rejected has from, value, must have role and content"),
        ({"prompt": [user("u")], "chosen": [assistant("a")], "rejected": [{"role": "assistant", "content": 4}]},
         "row 0: a message of rejected has the content 4, must be text"),
        ({"prompt": [assistant("u")], "chosen": [assistant("a")], "rejected": [assistant("b")]},
         "row 0: the prompt's roles are assistant; must be user and assistant in turn, from user to user, behind a "
         "system message or none"),
        ({"prompt": "p", "chosen": "\ud800", "rejected": "b"},
         "row 0: chosen has half of a surrogate pair (\\ud800 to \\udfff), which is no text"),
        ({"prompt": [user("u")], "chosen": [user("a")], "rejected": [assistant("b")]},
         "row 0: chosen has the roles user behind the prompt; must be one assistant message"),
    ],
)  # fmt: skip
def test_a_row_that_is_no_preference_is_named(row: Row, line: str) -> None:
    assert mistake(row) == line


def test_the_first_mistakes_are_shown_and_the_others_counted() -> None:
    rows = [{"prompt": "p", "chosen": "a", "rejected": None if i % 2 else "b"} for i in range(10)]
    line = "row {}: rejected is null, must be text or a list of messages"
    assert mistake(*rows) == f"{line.format(1)}; {line.format(3)}; {line.format(5)}; and 2 more"


# Files


def test_files_and_folders_are_read(tmp_path: Path) -> None:
    """A list, lines, and a folder's files of the split in order, also in `data`; a date stays text."""
    rows = [{"prompt": "p", "chosen": "2001-02-03", "rejected": "2001-02-04"}, {**SUMS[0]}]
    (tmp_path / "list.json").write_text(json.dumps(rows))
    expected = parsed(rows, "x").rows
    for path in (tmp_path / "list.json", write(tmp_path / "lines.jsonl", rows)):
        assert read_set(FixedPairs(path=str(path))).rows == expected
    (tmp_path / "set/data").mkdir(parents=True)
    write(tmp_path / "set/data/train-00001-of-00002.jsonl", rows[1:])
    write(tmp_path / "set/data/train-00000-of-00002.jsonl", rows[:1])
    write(tmp_path / "set/data/test.jsonl", [{}])
    assert read_set(FixedPairs(path=str(tmp_path / "set"))).rows == expected
    with pytest.raises(ValueError, match=r"no file of it is named after the split dev; the folder has test\.jsonl, tr"):
        read_set(FixedPairs(path=str(tmp_path / "set"), split="dev"))


def test_a_csv_file_is_read_as_text(tmp_path: Path) -> None:
    """12 and NA are answers; a line with too few fields is named."""
    path = tmp_path / "a.csv"
    path.write_text('prompt,chosen,rejected\n5+7=,12,NA\n"a\nb","c,d",e\n')
    expected = (Preferred("5+7=", "12", "NA"), Preferred("a\nb", "c,d", "e"))
    assert read_set(FixedPairs(path=str(path))).rows == expected
    path.write_text("prompt,chosen,rejected\n5+7=,12\n")
    with pytest.raises(ValueError, match=r"cannot be read: a\.csv, line 2 has not as many fields as the first line"):
        read_set(FixedPairs(path=str(path)))


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.jsonl", '{"prompt": "p"\n', "cannot be read: a.jsonl, line 1 is not JSON: "),
        ("a.jsonl", '["p"]\n', 'cannot be read: a.jsonl, line 1 is ["p"], must be an object'),
        ("a.jsonl", "\n", "but it has no rows"),
        ("a.txt", "p", r"with .txt; must be a file that ends with .jsonl, .json, .csv, .parquet"),
    ],
)
def test_files_that_cannot_be_read_are_told(name: str, text: str, line: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(line)):
        read_set(FixedPairs(path=str(tmp_path / name)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "prompt,chosen,chosen,rejected\np,a,b,c\n"),
        ("a.jsonl", '{"prompt": "p", "chosen": "a", "chosen": "b", "rejected": "c"}\n'),
        ("a.json", '[{"prompt": "p", "chosen": "a", "chosen": "b", "rejected": "c"}]'),
    ],
)
def test_a_column_that_is_there_twice_is_not_chosen_from(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match='"chosen" more than once'):
        read_set(FixedPairs(path=str(tmp_path / name)))


def test_a_long_text_is_a_field_of_a_csv_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"prompt,chosen,rejected\np,{'a' * 200_000},b\n")
    assert len(read_set(FixedPairs(path=str(tmp_path / "a.csv"))).rows) == 1


@pytest.mark.slow
def test_parquet_keeps_conversations(tmp_path: Path) -> None:
    import datasets

    row = {"prompt": [user("u")], "chosen": [assistant("a")], "rejected": [assistant("b")]}
    datasets.Dataset.from_list([row]).to_parquet(str(tmp_path / "a.parquet"))
    assert read_set(FixedPairs(path=str(tmp_path / "a.parquet"))) == parsed([row], "x")


@pytest.mark.slow
def test_a_hub_name_without_a_network_fails_with_a_sentence(tiny_run: MakeRun, tmp_path: Path) -> None:
    run = tiny_run("dpo", **QUIET, **{"objective.pairing": {"kind": "fixed_pairs", "path": "some/preferences"}})
    status = execute(run, tmp_path / "run")
    assert status.state == "failed"
    assert status.error is not None
    assert status.error.startswith('objective.pairing.path: "some/preferences" given, but it cannot be read: ')
    assert status.error.endswith("without a network, give a file or a folder as path")


# Tokens


def test_standard_rows_are_the_text_itself_with_one_end_token(model: LanguageModel) -> None:
    row = Preferred("1+2=", "3", "4<end>")
    pair = encoded(model, row, implicit=False)
    (end,) = model.end_ids
    assert pair.prompt_ids == tuple(model.encode_prompt("1+2="))
    assert pair.chosen == (*model.tokenizer("3")["input_ids"], end)  # pyright: ignore[reportGeneralTypeIssues]
    assert pair.rejected == (*model.tokenizer("4")["input_ids"], end)  # pyright: ignore[reportGeneralTypeIssues]


def test_conversations_are_written_by_the_template_and_end_with_their_end_token(model: LanguageModel) -> None:
    """No second end token, and nothing of the line break behind it, which the policy never says."""
    row = Preferred((Message("user", "sky?"),), (Message("assistant", "blue"),), (Message("assistant", "green"),))
    pair = encoded(model, row, implicit=False)
    assert model.decode(pair.prompt_ids) == "user|sky?\nassistant|"
    assert model.tokenizer.decode(list(pair.chosen)) == "blue<end>"
    assert model.tokenizer.decode(list(pair.rejected)) == "green<end>"


def test_a_template_with_another_prompt_is_refused(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    row = Preferred((Message("user", "a"),), (Message("assistant", "b"),), (Message("assistant", "c"),))
    monkeypatch.setattr(model.tokenizer, "chat_template", TEMPLATE.replace("%}assistant|", "%}assistant|think"))
    with pytest.raises(PairsUnavailable, match="does not begin a conversation with the prompt"):
        encoded(model, row, implicit=False)
    monkeypatch.setattr(model.tokenizer, "chat_template", "{{ raise_exception('no') }}")
    with pytest.raises(PairsUnavailable, match="the chat template cannot write a conversation of the set"):
        encoded(model, row, implicit=False)
    monkeypatch.setattr(model.tokenizer, "chat_template", None)
    with pytest.raises(PairsUnavailable, match="its rows are conversations, and the policy's tokenizer has no chat"):
        encoded_pairs(model, PreferenceSet((row,), False, 1, 0), 9)


def test_rows_that_do_not_fit_are_left_out_whole_and_counted(model: LanguageModel) -> None:
    """Of five rows one repeats itself, one is too long for a completion, one for the context and one has a letter that
    is no token."""
    sides = {"chosen": "ab", "rejected": "ba"}
    rows = [
        {"prompt": "p", **sides},
        {"prompt": "p", "chosen": "a", "rejected": "a"},
        {"prompt": "p", "chosen": "abcd", "rejected": "a"},
        {"prompt": "p" * 62, **sides},
        {"prompt": "É", **sides},
    ]
    made = encoded_pairs(model, parsed(rows, "x"), 3)
    names = ("dpo/rows", "dpo/rows_identical", "dpo/rows_unknown", "dpo/rows_too_long", "dpo/num_pairs")
    assert [made.found[name] for name in names] == [5, 1, 1, 2, 1]
    assert (made.found["dpo/chosen_length"], made.found["dpo/length_gap"]) == (3, 0)
    with pytest.raises(NothingToLearn, match=r"max_completion_tokens = 2 .*the shortest of which takes 3 tokens"):
        encoded_pairs(model, parsed(rows[:1], "x"), 2)


def test_an_implicit_prompt_ends_at_a_token(model: LanguageModel) -> None:
    (row,) = parsed([{"chosen": "is black", "rejected": "is blue"}], "x").rows
    pair = encoded(model, row, implicit=True)
    assert [model.decode(ids) for ids in (pair.prompt_ids, pair.chosen, pair.rejected)] == ["is bl", "ack", "ue"]


# Runs


def test_a_run_on_a_fixed_set(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Nothing is sampled, the same file elsewhere is the same run, and a second start changes nothing."""
    path = write(tmp_path / "pairs.jsonl", [*SUMS, {**SUMS[0], "rejected": SUMS[0]["chosen"]}])
    knobs = {**QUIET, "rollout.updates_per_rollout": 4, "optimizer.lr": 1e-2}
    run = tiny_run("dpo", **knobs, **{"objective.pairing": {"kind": "fixed_pairs", "path": str(path)}})
    assert execute(run, tmp_path / "run").state == "finished"
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [record["dpo/passes"] for record in records] == pytest.approx([8 / 24, 16 / 24, 1, 32 / 24])
    first = records[0]
    assert (first["dpo/rows"], first["dpo/rows_identical"], first["dpo/num_pairs"]) == (25, 1, 24)
    assert (first["tokens/generated"], first["completions/generated"]) == (0, 0)
    assert first["loss"] == pytest.approx(0.693147, abs=1e-5)
    assert records[-1]["dpo/accuracy"] > first["dpo/accuracy"] == 0
    moved = write(tmp_path / "elsewhere.jsonl", [*SUMS, {**SUMS[0], "rejected": SUMS[0]["chosen"]}])
    other = {"kind": "fixed_pairs", "path": str(moved)}
    assert tiny_run("dpo", **knobs, **{"objective.pairing": other}).id == run.id
    write(moved, SUMS)
    assert tiny_run("dpo", **knobs, **{"objective.pairing": other}).id != run.id


@pytest.mark.parametrize(
    ("rows", "knobs", "line"),
    [
        ([{"prompt": "1", "chosen": "a"}], {}, "objective.pairing.path: "),
        (None, {}, 'objective.pairing.path: "{path}" given, but there is no such file or folder here'),
        (SUMS, {"objective.pairing.split": "dev"}, "objective.pairing.split: dev given, but objective.pairing.path is"),
        (SUMS, {"rollout.epochs": 2}, "rollout.epochs: 2 given, but the pairs of {path} are fixed"),
        (SUMS, {"rollout.temperature": 0.5}, "rollout.temperature: 0.5 given, but the pairs of {path} are fixed"),
        (SUMS, {"rollout.prompts": 2, "rollout.group_size": 1, "rollout.updates_per_rollout": 2},
         "rollout.group_size: 1 given with rollout.prompts 2 and updates_per_rollout 2, which is 1 completion"),
        (SUMS, {"reward.format": 0.5}, "reward.format: 0.5 given, but dpo reads pairs of a data set, not the reward"),
        (SUMS, {"reward.sparsity": 0.5}, "reward.sparsity: 0.5 given, but dpo reads pairs of a data set"),
        ([{"chosen": [user("u"), assistant("a")], "rejected": [user("u"), assistant("b")]}], {},
         "objective.pairing.path: its rows are conversations, and the tiny model has no chat template"),
    ],
)  # fmt: skip
def test_mistakes_about_a_fixed_set_are_told_before_the_run(
    rows: Sequence[Row] | None, knobs: dict[str, Any], line: str, tiny_run: MakeRun, tmp_path: Path
) -> None:
    path = tmp_path / "pairs.jsonl"
    if rows is not None:
        write(path, rows)
    given = {**QUIET, "warm_start": None, "objective.pairing.kind": "fixed_pairs", "objective.pairing.path": str(path)}
    with pytest.raises(ConfigError) as error:
        tiny_run("dpo", **{**given, **knobs})
    assert any(found.startswith(line.format(path=path)) for found in error.value.lines), error.value.lines
