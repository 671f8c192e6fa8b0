"""`bench score`: every verdict that changed is shown, nothing stored is touched, and a kill costs nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard

from bench.dialect import ConfigError
from bench.evaluation import Outcome, outcome_matrix, read_estimates, read_outcomes, write_outcomes
from bench.rescore import Request, Rescored, rescore
from tasks.chain_sum import ChainSum


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(zstandard.ZstdCompressor().compress(text) if path.suffix == ".zst" else text)
    return path


def _score(path: Path, task: str = "gsm8k", **asked: Any) -> Rescored:
    return rescore(Request(path=path, task=task, **asked))


def _refusal(path: Path, task: str = "gsm8k", **asked: Any) -> list[str]:
    with pytest.raises(ConfigError) as error:
        _score(path, task, **asked)
    return error.value.lines


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """An evaluation of three sums, two samples each, of which two verdicts and one answer were stored wrongly."""
    task = ChainSum(num_terms=3, num_digits=1)
    problems = [task.generate("test", index) for index in range(3)]
    rows: list[dict[str, Any]] = []
    outcomes: list[Outcome] = []
    for problem in problems:
        for sample, text in enumerate((problem.solution or "", "1+1=99")):
            own = {"problem_id": problem.id, "sample": sample}
            about = {"truncated": sample == 1 and problem is problems[2], "num_tokens": len(text)}
            rows.append({**own, "gold": problem.gold, "completion": text, **about})
            key = problem.gold if sample == 0 else "99"
            outcomes.append(
                Outcome(**own, **about, correct=sample == 0, answer_key=key, parsed=True, timed_out=False, method="end")
            )
    changed = {0: {"correct": False, "answer_key": "7"}, 3: {"correct": None}, 2: {"answer_key": "0"}, 5: {}}
    for place, values in changed.items():
        outcomes[place] = Outcome(**{**vars(outcomes[place]), **values})
    write_outcomes(tmp_path / "test.parquet", outcome_matrix(outcomes))
    manifest = {"task": task.model_dump(mode="json"), "ks": [1, 2], "model": "some model", "samples": 2}
    (tmp_path / "test.json").write_text(json.dumps(manifest))
    return _write(tmp_path / "test.jsonl.zst", rows)


def test_every_changed_verdict_is_shown_with_its_answers_and_the_end_of_the_text(stored: Path) -> None:
    found = _score(stored, "chain_sum")
    golds = [ChainSum(num_terms=3, num_digits=1).generate("test", index).gold for index in range(3)]
    lines = list(found.lines())
    assert lines[:2] == [
        "chain_sum/test/0  sample 0  wrong -> correct",
        f"    answer 7 (end) -> {golds[0]} (end), gold {golds[0]}, ends: {found.changes[0].stored.completion}",
    ]
    assert lines[2:4] == [
        "chain_sum/test/1  sample 1  unscorable -> wrong",
        f"    answer 99 (end) -> 99 (end), gold {golds[1]}, ends: 1+1=99",
    ]
    assert found.directions() == {"wrong -> correct": 1, "unscorable -> wrong": 1}
    # One answer with its verdict unchanged is read otherwise, and the truncated sample has no answer any more.
    assert found.keys_changed == 2
    table = {line[:16].strip(): line[16:].split() for line in lines}
    assert table["correct"] == ["2", "3"]
    assert table["no answer found"] == ["0", "1"]
    assert table["Pass@1"] == ["0.5000", "0.5000"]


def test_results_stand_beside_the_evaluation_which_stays_as_it_was(stored: Path) -> None:
    before = {file.name: file.read_bytes() for file in stored.parent.iterdir()}
    _score(stored, "chain_sum")
    assert {name: (stored.parent / name).read_bytes() for name in before} == before
    outcomes = read_outcomes(stored.parent / "test.rescored.parquet")
    assert outcomes.correct == (True, False, True, False, True, False)
    assert outcomes.truncated.tolist() == [False] * 5 + [True]
    assert read_estimates(stored.parent / "test.rescored.estimates.parquet").pass_at(2).tolist() == [1.0, 1.0, 1.0]
    manifest = json.loads((stored.parent / "test.rescored.json").read_text())
    assert manifest["model"] == "some model"
    assert manifest["task"]["num_digits"] == 1
    assert manifest["verifier_version"] >= 1
    assert manifest["changes"] == {"wrong -> correct": 1, "unscorable -> wrong": 1}
    assert not list(stored.parent.glob(".*"))
    out = stored.parent / "elsewhere"
    _score(stored, "chain_sum", out=out)
    assert sorted(file.suffix for file in out.iterdir()) == [".json", ".parquet", ".parquet"]


def test_a_foreign_file_needs_no_more_than_completions_and_golds(tmp_path: Path) -> None:
    rows = [
        {"completion": "#### 5", "gold": 5, "correct": 1},
        {"completion": "so \\boxed{6}\x1b[2J\n", "gold": "7", "correct": True, "extra": [1]},
        {"problem_id": 3, "completion": "#### 1", "gold": "1"},
        {"problem_id": 3, "completion": "#### 2", "gold": "1", "correct": None},
    ]
    found = _score(_write(tmp_path / "theirs.jsonl", rows))
    places = [(outcome.problem_id, outcome.sample, outcome.correct) for outcome in found.after]
    assert places == [("line/1", 0, True), ("line/2", 0, False), ("3", 0, True), ("3", 1, False)]
    lines = list(found.lines())
    assert lines[1] == r"    answer 6 (box), gold 7, ends: so \boxed{6}\x1b[2J\n"
    assert found.directions() == {"correct -> wrong": 1, "unscorable -> wrong": 1}
    assert any("1 of 4 completions have no stored verdict" in line for line in lines)
    assert any("3 problems were graded by the file's own gold answers" in line for line in lines)
    assert json.loads((tmp_path / "theirs.rescored.json").read_text())["mean_tokens"] is None


def test_problems_come_from_the_data_where_it_is_given(tmp_path: Path) -> None:
    for name in ("train", "test"):
        rows = [{"question": f"{name} {i}?", "answer": f"#### {i}"} for i in range(20)]
        _write(tmp_path / f"gsm8k_{name}.jsonl", rows)
    rows = [
        {"problem_id": f"gsm8k/{split}/{i}", "completion": f"#### {i}"} for split in ("train", "test") for i in (3, 4)
    ]
    rows[1]["gold"] = "9"
    path = _write(tmp_path / "ours.jsonl", rows)
    found = _score(path, data=str(tmp_path))
    assert [outcome.correct for outcome in found.after] == [True] * 4
    assert [note for note in found.notes if "another gold" in note]
    assert "gsm8k_test.jsonl" in _refusal(path)[0]  # without data and without golds
    _write(path, [*rows, {"problem_id": "gsm8k/test/20", "completion": "", "gold": "1"}])
    assert "gsm8k has no problem gsm8k/test/20" in _refusal(path, data=str(tmp_path))[0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"problem_id": "a", "gold": "1", "completion": ', "not JSON"),
        ("[1]", "holds list"),
        ('{"gold": "1", "completions": "x"}', "has no completion, only gold, completions; is it completions?"),
        ('{"completion": "x"}', "neither a problem_id nor a gold"),
        ('{"gold": "1", "completion": 5}', "completion is 5, must be text"),
        ('{"gold": "1", "completion": "x", "sample": -1}', "sample is -1, must be a whole number from 0"),
        ('{"gold": "1", "completion": "x", "correct": "yes"}', 'correct is "yes", must be true, false or null'),
        ('{"gold": "1", "completion": "x", "truncated": 2}', "truncated is 2, must be true or false"),
        ('{"problem_id": "ok", "sample": 0, "gold": "1", "completion": "x"}', "was given before, in line 1"),
        ('{"problem_id": "ok", "gold": "2", "completion": "x"}', 'has gold "1" in line 1'),
        ("\ufffe\udc80", "not"),
    ],
)
def test_a_malformed_line_is_named_with_its_reason(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "c.jsonl"
    good = b'{"problem_id": "ok", "gold": "1", "completion": "x"}\n\n'
    path.write_bytes(good + line.encode("utf-8", "surrogateescape") + b"\n")
    (message,) = _refusal(path)
    assert message.startswith(f"{path}, line 3: ")
    assert reason in message
    path.write_bytes(good + b"nonsense\n" * 9)
    lines = _refusal(path)
    assert [text.partition(": ")[0] for text in lines[:5]] == [f"{path}, line {n}" for n in range(3, 8)]
    assert lines[5] == f"{path}: and 4 more such lines"


def test_what_does_not_belong_together_is_one_line(stored: Path, tmp_path: Path) -> None:
    assert "chain_sum/test/0 is a problem of another task" in _refusal(stored)[0]
    assert "give the knobs that it was sampled with" in _refusal(stored, "chain_sum", knobs=["num_digits=3"])[0]
    assert "did you mean chain_sum?" in _refusal(stored, "chain_sums")[0]
    assert "must be a whole number, at least 2" in _refusal(stored, "chain_sum", knobs=["num_terms=1"])[0]
    assert "reads no data" in _refusal(stored, "chain_sum", data="x")[0]
    foreign = _write(tmp_path / "f.jsonl", [{"completion": "x", "gold": "1"}])
    assert "chain_sum has no problem 'line/1'" in _refusal(foreign, "chain_sum")[0]
    assert "cannot be read: No such file" in _refusal(tmp_path / "none.jsonl")[0]
    (tmp_path / "empty.jsonl").write_text("\n")
    assert "there is no completion in it" in _refusal(tmp_path / "empty.jsonl")[0]
    cut = tmp_path / "cut.jsonl.zst"
    cut.write_bytes(stored.read_bytes()[:-9])
    assert "not a whole zstandard file" in _refusal(cut, "chain_sum")[0]
    (tmp_path / "test.parquet").write_bytes(b"no table")
    assert "the stored verdicts cannot be read" in _refusal(stored, "chain_sum")[0]


def test_a_killed_scoring_goes_on_where_it_was(tmp_path: Path, root: Path) -> None:
    rows = [{"gold": str(i), "completion": f"{'So it is. ' * 12}#### {i + i % 2}"} for i in range(3_000)]
    path, journal = _write(tmp_path / "many.jsonl", rows), tmp_path / ".many.rescored.journal.jsonl"
    code = f"from bench.rescore import *\nrescore(Request(path=Path({str(path)!r}), task='gsm8k'))"
    with subprocess.Popen([sys.executable, "-c", code], cwd=root, stderr=subprocess.DEVNULL) as process:
        while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
    done = journal.read_bytes().count(b"\n") - 1
    assert 2 <= done < 6
    # What the journal has is taken from it: a mark left there is found in the outcomes.
    lines = journal.read_text().splitlines()
    journal.write_text(
        "\n".join([*lines[:1], lines[1].replace('"marker"', '"from the journal"'), *lines[2:]]) + '\n{"to'
    )
    found = _score(path)
    assert [o.method for o in found.after].count("from the journal") == 512
    assert [o.correct for o in found.after] == [i % 2 == 0 for i in range(3_000)]
    assert not journal.exists()
    # And it is forgotten with the file it belongs to.
    _score(_write(path, rows[:10]))
    assert read_outcomes(tmp_path / "many.rescored.parquet").method == ("marker",) * 10
