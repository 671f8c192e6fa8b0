"""`bench doctor`: a healthy run passes, and each thing that can be wrong is named where it is found."""

import http.server
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bench.adapters import num_trained
from bench.config import Run, TinyModel
from bench.doctor import Check, Material, batch, data, disk, doctor, golds, overlaps, rewards, tracker
from bench.doctor_model import lengths, model_checks, room, round_trip
from bench.loading import build_run
from bench.models import LanguageModel, create_tiny, save_folder
from tasks.chain_sum import ChainSum
from tasks.gsm8k import Gsm8k
from tasks.parts.problem import Grade, Problem

MakeRun = Callable[..., Run]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """GSM8K's files, small: the first test question is a training question as well."""
    for name, first in (("train", 0), ("test", 19)):
        lines = [
            {"question": f"How much is {i} and {i}?", "answer": f"It is {2 * i}.\n#### {2 * i}"} for i in range(40)
        ]
        lines = lines[first : first + 20]
        if name == "test":
            lines[0]["question"] = "how much is 7 and 7"
        (tmp_path / f"gsm8k_{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


@pytest.fixture
def gsm8k_run(rows: Path) -> MakeRun:
    """A run on those files."""

    def make(**sections: Any) -> Run:
        plain = {
            "task": {"name": "gsm8k", "path": str(rows)},
            "model": {"max_positions": 400},
            "rollout": {"prompts": 8, "group_size": 4, "updates_per_rollout": 2, "max_completion_tokens": 100},
            "optimizer": {"lr": 1e-6, "microbatch_sequences": 8},
            "budget": {"updates": 8},
            "evaluation": {"problems": 5, "samples": 4, "ks": [1]},
            "output": {"root": str(rows / "runs")},
            "tracking": {"enabled": False},
        }
        return build_run(plain, sections)

    return make


def _material(run: Run) -> Material:
    material = data(run, "", run.task, None)[1]
    assert material is not None
    return material


def _model(run: Run) -> LanguageModel:
    assert isinstance(run.model, TinyModel)
    return create_tiny(run.model, run.alphabet, 0)


def test_a_healthy_run_passes_every_check_and_shows_its_first_prompt(tiny_run: MakeRun) -> None:
    checks = list(doctor(tiny_run("grpo"), most_problems=16))
    assert {check.state for check in checks} == {"ok"}
    wanted = "configuration batch disk tracker data overlap model room tokenizer context prompt"
    assert {check.name for check in checks} == {*wanted.split(), "gold answers"}
    first = ChainSum(num_terms=2, num_digits=1).generate("train", 0)
    assert checks[-1].lines[1] == f"  | {first.prompt}"
    assert checks[-1].lines[0].endswith(f"gold {first.gold}:")


def test_lines_are_aligned_and_no_wider_than_asked() -> None:
    check = Check("data", "warn", ("word " * 40, "  quoted as it is"))
    lines = list(check.printed(60))
    assert lines[0].startswith("warn  data          word")
    assert max(map(len, lines)) <= 60
    assert all(line.startswith(" " * 20) for line in lines[1:])
    assert lines[-1].endswith("  quoted as it is")


def test_the_batch_is_told_in_words(gsm8k_run: MakeRun) -> None:
    assert batch(gsm8k_run()).lines == (
        "8 prompts x 4 completions = 32 completions a rollout",
        "2 updates a rollout: 16 completions an update, in microbatches of at most 4,096 tokens and 8 completions",
        "8 updates = 4 rollouts: 128 completions, at most 12,800 completion tokens",
        "evaluation: 5 problems x 4 samples = 20 completions, also of the starting model",
    )
    assert "10 times as many" in " ".join(batch(gsm8k_run(algorithm="dapo")).lines)
    assert "worked solutions are imitated" in " ".join(batch(gsm8k_run(algorithm="sft")).lines)


def test_data_that_cannot_be_read_is_named_and_stops_what_needs_it(gsm8k_run: MakeRun, rows: Path) -> None:
    run = gsm8k_run()
    check, material = data(run, "", run.task, None)
    assert check.lines[1:] == (
        "train 19, validation 1, test 20",
        "the run takes 32 training prompts, 1.7 times the split",
    )
    assert material is not None
    with (rows / "gsm8k_test.jsonl").open("a") as file:
        file.write(json.dumps({"question": "How?", "answer": "no gold"}) + "\n")
    checks = {check.name: check for check in doctor(run)}
    assert checks["data"].state == "fail"
    assert "row 20: answer does not end with" in checks["data"].lines[0]
    assert "gold answers" not in checks
    assert checks["model"].state == "ok"


class _Strict(Gsm8k, frozen=True):
    """A task whose grader refuses its own gold 4 and accepts anything for 8."""

    version: ClassVar[int] = 1

    def grade(self, problem: Problem, completion: str, *, truncated: bool = False) -> Grade:
        found = super().grade(problem, completion, truncated=truncated)
        return replace(found, correct=problem.gold == "8" or (bool(found.correct) and problem.gold != "4"))

    def grade_all(self, items: Any) -> list[Grade]:
        return [self.grade(problem, text, truncated=truncated) for problem, text, truncated in items]


def test_golds_that_the_grader_refuses_and_wrong_answers_that_it_accepts_are_named_by_row(rows: Path) -> None:
    task = _Strict(path=str(rows))
    problems = [
        Problem(id=f"gsm8k/train/{i}", prompt="?", gold=str(2 * i), solution=f"#### {2 * i}") for i in range(20)
    ]
    check = golds(Material("", task, problems, []))
    assert check.state == "fail"
    assert check.lines[0].startswith("2 of 20 train and 0 test problems fail")
    assert check.lines[1].startswith("  gsm8k/train/2: gold refused: gold '4'")
    assert check.lines[2].startswith("  gsm8k/train/4: corrupted accepted: gold '8'")
    assert golds(Material("", Gsm8k(path=str(rows)), problems, problems)).state == "ok"


def test_a_test_question_in_training_is_a_warning(gsm8k_run: MakeRun) -> None:
    run = gsm8k_run()
    check = overlaps(run, _material(run))
    assert (check.state, check.lines[1]) == ("warn", "such as gsm8k/test/0")
    assert "20 test against 19 training problems: 1 the same" in check.lines[0]
    other = ChainSum()
    beside = overlaps(run, Material("sums", other, [], [other.generate("test", 0)]))
    assert (beside.state, beside.lines[0].partition(":")[0]) == ("ok", "sums")


def test_a_tokenizer_that_loses_an_answer_fails(gsm8k_run: MakeRun) -> None:
    run = gsm8k_run()
    whole, own = _model(run), _material(run)
    assert round_trip(whole, own).state == "ok"
    assert "<end> (1)" in round_trip(whole, own).lines[0]
    without_digits = create_tiny(TinyModel(), "".join(set(run.alphabet) - set("0123456789")), 0)
    assert round_trip(without_digits, own).state == "fail"
    without_dots = create_tiny(TinyModel(), run.alphabet.replace(".", ""), 0)
    changed = round_trip(without_dots, own)
    assert (changed.state, changed.lines[1].partition(" worked")[0]) == ("warn", "39 of 39")


def test_prompts_and_solutions_that_do_not_fit_are_counted(gsm8k_run: MakeRun) -> None:
    run = gsm8k_run()
    own = _material(run)
    fits = lengths(run, _model(run), [own])
    assert fits.state == "ok"
    assert "(gsm8k/train/10) + completion 100 = 225 of 400 tokens" in fits.lines[0]
    small = create_tiny(TinyModel(max_positions=224), run.alphabet, 0)
    over = lengths(run, small, [own])
    assert over.state == "fail"
    assert over.lines[1].startswith("13 of 24 prompts leave no room")
    short = gsm8k_run(rollout={"max_completion_tokens": 5})
    cut = lengths(short, _model(short), [own])
    assert (cut.state, cut.lines[1].partition(" worked")[0]) == ("warn", "19 of 19")


def test_a_base_model_without_a_chat_template_has_the_plain_one_or_an_error(gsm8k_run: MakeRun, rows: Path) -> None:
    run = gsm8k_run()
    save_folder(_model(run), rows / "base")
    model = {"kind": "pretrained", "path": str(rows / "base")}
    plain = {check.name: check for check in model_checks(gsm8k_run(model=model), [_material(run)])}
    assert {check.state for check in plain.values()} == {"ok"}
    assert "plain text, because the tokenizer has no chat template (plain)" in plain["model"].lines[2]
    assert plain["prompt"].lines[1] == "  | How much is 0 and 0?"
    asked = list(model_checks(gsm8k_run(model={**model, "prompt_format": "chat"}), [_material(run)]))
    assert [check.state for check in asked] == ["fail"]
    assert "has no chat template: give plain or auto" in asked[0].lines[0]
    (rows / "base/model.safetensors").write_bytes(b"")
    broken = list(model_checks(gsm8k_run(model=model), [_material(run)]))
    assert [check.state for check in broken] == ["fail"]
    assert "cannot be loaded" in broken[0].lines[0]


def test_a_chat_template_that_fails_on_a_prompt_is_no_traceback(gsm8k_run: MakeRun) -> None:
    run = gsm8k_run()
    model = _model(run)
    model.tokenizer.chat_template = "{% if 'How' in messages[0].content %}{{ messages[5].content }}{% endif %}x"
    folder = Path(run.output.root) / "chat"
    save_folder(model, folder)
    checks = list(model_checks(gsm8k_run(model={"kind": "pretrained", "path": str(folder)}), [_material(run)]))
    assert (checks[-1].name, checks[-1].state) == ("prompt", "fail")
    assert "the chat template cannot write it" in checks[-1].lines[0]


def test_rewards_are_imported_and_find_their_columns(
    gsm8k_run: MakeRun, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(rows)
    (rows / "own_reward.py").write_text("def short(completions, level):\n    return [1.0 for _ in completions]\n")
    plain = gsm8k_run()
    assert list(rewards(plain, _material(plain))) == []
    for name in ("train", "test"):
        file = rows / f"gsm8k_{name}.jsonl"
        file.write_text(
            "".join(json.dumps({**json.loads(row), "level": 1}) + "\n" for row in file.read_text().splitlines())
        )
    run = gsm8k_run(reward={"functions": [{"function": "own_reward:short", "weight": 0.5}]})
    (found,) = rewards(run, _material(run))
    assert (found.state, found.lines) == ("ok", ("own_reward:short: weight 0.5, takes level",))
    without = [replace(problem, columns={"levels": 1}) for problem in _material(run).train]
    (missing,) = rewards(run, Material("", run.task, without, without))
    assert missing.state == "fail"
    assert "there is no level" in missing.lines[0]
    assert "is it levels?" in missing.lines[0]


def test_where_results_cannot_go_is_said(gsm8k_run: MakeRun, rows: Path) -> None:
    assert disk(gsm8k_run()).state == "ok"
    blocked = disk(gsm8k_run(output={"root": str(rows / "gsm8k_test.jsonl")}))
    assert (blocked.state, blocked.lines[0].endswith("is a file")) == ("fail", True)


@pytest.fixture
def server() -> Iterator[str]:
    """A server that is up but refuses whoever asks."""

    class Refuses(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(401)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Refuses) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_a_tracker_that_cannot_be_used_is_a_warning(gsm8k_run: MakeRun, rows: Path, server: str) -> None:
    def found(uri: str) -> Check:
        return tracker(gsm8k_run(tracking={"enabled": True, "uri": uri}))

    assert found(f"sqlite:///{rows}/new/mlflow.db").state == "ok"
    assert not (rows / "new").exists()
    (rows / "text.db").write_text("not a database, but long enough to be looked at as one" * 99)
    assert "not a database of MLflow" in found(f"sqlite:///{rows}/text.db").lines[0]
    sqlite3.connect(rows / "other.db").close()
    assert found(f"sqlite:///{rows}/other.db").state == "warn"
    refused = found(server.replace("http://", "http://me:secret@"))
    assert refused.state == "warn"
    assert "secret" not in "".join(refused.lines)
    assert "answers 401" in found(server).lines[0]
    assert "cannot be reached" in found("http://127.0.0.1:1").lines[0]


def test_the_room_counts_what_is_trained_and_every_checkpoint_that_stays(tiny_run: MakeRun) -> None:
    """AdamW's moments are kept of an adapter alone, and `keep_every` leaves checkpoints beside the newest."""
    few = {"checkpoint.every": 1, "budget.updates": 10}
    model = _model(tiny_run("grpo"))
    mega = sum(p.numel() for p in model.network.parameters()) / 1e6
    lora = {"adapter.kind": "lora", "adapter.rank": 4}
    adapter = tiny_run("grpo", **lora).adapter
    assert adapter is not None
    _, trained = num_trained(model.network, adapter)

    def line(**knobs: object) -> str:
        check = room(tiny_run("grpo", **knobs), model, None)
        assert check.state == "ok"
        return check.lines[0].partition(" of ")[0]

    def told(num_bytes: float) -> str:
        return f"model and checkpoints take about {num_bytes:.1f} MB"

    assert line() == told(4 * mega)
    assert line(**few) == told(4 * mega + 2 * 12 * mega)
    assert line(**few, **{"checkpoint.keep_every": 2}) == told(4 * mega + 6 * 12 * mega)
    assert line(**few, **{"validation.select": "validation"}) == told(3 * 4 * mega + 2 * 12 * mega)
    assert line(**few, **lora) == told(4 * mega + 2 * 12 * trained / 1e6)
