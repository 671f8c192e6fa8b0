"""Loading problems: the same rows by position, splits that share none, one clear line for data that is not right."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bench.problems import load_problems, num_problems
from tasks.chain_sum import ChainSum
from tasks.gsm8k import Gsm8k
from tasks.parts.problem import Split

SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def row(number: int) -> dict[str, object]:
    return {"question": f"What is {number}?", "answer": f"It is {number}.\n#### {number}"}


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "gsm8k_train.jsonl", [row(number) for number in range(40)])
    write(tmp_path / "gsm8k_test.jsonl", [row(number) for number in range(100, 103)])
    return tmp_path


def test_rows_by_split_and_position(folder: Path):
    task = Gsm8k(path=str(folder))
    assert [num_problems(task, split) for split in SPLITS] == [38, 2, 3]
    assert [p.gold for p in load_problems(task, "train", 35, 3)] == ["35", "36", "37"]
    assert [(p.id, p.gold) for p in load_problems(task, "validation", 0, 2)] == [
        ("gsm8k/validation/0", "38"),
        ("gsm8k/validation/1", "39"),
    ]
    assert [p.gold for p in load_problems(task, "test", 1, 2)] == ["101", "102"]
    assert load_problems(task, "test", 3, 0) == []


def test_the_data_folder_is_left_alone(folder: Path):
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    num_problems(Gsm8k(path=str(folder)), "train")
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_changed_file_is_read_again(folder: Path):
    task = Gsm8k(path=str(folder))
    assert num_problems(task, "test") == 3
    write(folder / "gsm8k_test.jsonl", [row(1)])
    assert num_problems(task, "test") == 1


def test_a_file_may_be_named_in_place_of_its_folder(folder: Path):
    task = Gsm8k(path=str(folder / "gsm8k_train.jsonl"))
    assert [num_problems(task, split) for split in ("train", "validation")] == [38, 2]
    message = f"gsm8k: test is read from gsm8k_test.jsonl, but task.path is the file {folder}/gsm8k_train.jsonl"
    with pytest.raises(ValueError, match=re.escape(message)):
        num_problems(task, "test")


def test_a_small_file_may_leave_no_row_for_validation(tmp_path: Path):
    write(tmp_path / "gsm8k_train.jsonl", [row(1), row(2), row(3)])
    assert [num_problems(Gsm8k(path=str(tmp_path)), split) for split in ("train", "validation")] == [3, 0]


def test_more_than_there_is(folder: Path):
    with pytest.raises(
        ValueError, match=r"gsm8k: problems 2 to 3 of test were asked for, but .*\.jsonl \(test\) has 3"
    ):
        load_problems(Gsm8k(path=str(folder)), "test", 2, 2)


def refusal(path: Path) -> str:
    with pytest.raises(ValueError, match="gsm8k") as refused:
        load_problems(Gsm8k(path=str(path)), "train", 0, 1)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_missing_data(tmp_path: Path):
    file = tmp_path / "gsm8k_train.jsonl"
    missing = f"gsm8k: {file} with the train problems does not exist"
    assert refusal(tmp_path) == f"{missing}; the folder has no data file"
    write(tmp_path / "train.jsonl", [row(1)])
    assert refusal(tmp_path) == f"{missing}; the folder has train.jsonl"
    nowhere = tmp_path / "nowhere"
    assert refusal(nowhere) == f"{missing.replace(str(tmp_path), str(nowhere))}; there is no such folder"


def test_a_missing_column_is_named_beside_those_found(tmp_path: Path):
    file = write(tmp_path / "gsm8k_train.jsonl", [{"question": "What is 1?", "answers": "#### 1", "extra": 1}])
    assert refusal(tmp_path) == (
        f"gsm8k: {file} (train[:95%]) has no column answer: its columns are question, answers, extra; is it answers?"
    )


def test_bad_files_are_one_line(tmp_path: Path):
    file = tmp_path / "gsm8k_train.jsonl"
    file.write_text("")
    assert refusal(tmp_path) == f"gsm8k: {file} is empty"
    file.write_text('{"question": ')
    assert refusal(tmp_path).startswith(f"gsm8k: cannot read {file} (train[:95%]): DatasetGenerationError: JSON parse")


def test_bad_rows_are_listed(tmp_path: Path):
    bad = {"question": "What is it?", "answer": "unknown"}
    file = write(tmp_path / "gsm8k_train.jsonl", [row(0), bad, row(2), bad, bad, bad, bad])
    assert refusal(tmp_path) == (
        f"gsm8k: {file} (train[:95%]): "
        + "; ".join(f"row {i}: answer does not end with \"#### number\": 'unknown'" for i in (1, 3, 4))
        + "; and 2 more"
    )


def test_without_a_network_the_hub_is_named_and_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    message = (
        r"gsm8k: cannot read openai/gsm8k \(main, test, revision 740312a\): .*; "
        r"without a network, give a folder with gsm8k_test\.jsonl and gsm8k_train\.jsonl as task\.path"
    )
    with pytest.raises(ValueError, match=message):
        num_problems(Gsm8k(), "test")


def test_procedural_tasks_need_no_data():
    task = ChainSum(num_terms=2, num_digits=1)
    assert [num_problems(task, split) for split in SPLITS] == [None, 8, 9]
    assert load_problems(task, "test", 2, 3) == [task.generate("test", index) for index in (2, 3, 4)]
    with pytest.raises(ValueError, match="has 9 test problems"):
        load_problems(task, "test", 8, 2)


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match='split: "dev" given, must be one of train, validation, test'):
        num_problems(ChainSum(), "dev")  # pyright: ignore[reportArgumentType]


def test_the_public_files(shared_dir: Path):
    task = Gsm8k(path=str(shared_dir / "data"))
    assert [num_problems(task, split) for split in SPLITS] == [7099, 374, 1319]
    problems = [p for split in SPLITS for p in load_problems(task, split, 0, num_problems(task, split) or 0)]
    assert len({p.prompt for p in problems}) == len({p.id for p in problems}) == 7473 + 1319
