"""Run health in the report: every run's answers, what asks for a look with its remedy, and runs that tell nothing."""

from collections.abc import Callable
from pathlib import Path

from bench import store
from reports import health, overview
from reports.parts.page import Notes, Text
from reports.parts.table import Table

MakeRun = Callable[..., Path]


def rewrite(run: Path, **series: list[float]) -> None:
    """Metrics of a run that are nothing but the series given."""
    (run / "metrics.jsonl").unlink()
    length = max(map(len, series.values()))
    for i in range(length):
        record = {name.replace("__", "/"): values[i] for name, values in series.items()}
        store.append_jsonl(run / "metrics.jsonl", {"update": i + 1, **record})


def collapsed(start: float) -> list[float]:
    return [start] * 8 + [0.01] * 8


def tables(sweep: Path) -> list[Table]:
    return [block for block in health.render(store.read_sweep(sweep)).blocks if isinstance(block, Table)]


def test_every_run_has_its_answers_and_seeds_that_differ_are_counted(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(tmp_path, "grpo", seed) for seed in (0, 1)]
    rewrite(runs[0], entropy=collapsed(1.0), reward__mean=[i / 16 for i in range(16)])
    rewrite(runs[1], entropy=[1.0] * 16, reward__mean=[i / 16 for i in range(16)])
    answers, looks = tables(tmp_path)
    row, thresholds = answers.rows
    shown = dict(zip(answers.columns, row, strict=True))
    assert (shown["Reward"].text, shown["Reward"].bold) == ("yes", False)
    assert (shown["Entropy"].text, shown["Entropy"].bold) == ("1 yes, 1 no", True)
    assert shown["Entropy"].details == ("0.505",)
    assert {"KL", "Critic"}.isdisjoint(shown)
    assert "Not measured in any run: Verdict, All right" in answers.caption
    assert [cell.text for cell in thresholds] == ["Threshold", "noise", "0.25"]
    (look,) = looks.rows
    assert [cell.text for cell in look][1::2] == ["Did entropy collapse?", "yes"]
    assert look[-1].text == "1 of 2"
    assert look[2].text == "entropy 1 nats at first, 0.01 in the last quarter"
    assert look[2].details[0].startswith("To try: lower the learning rate")
    assert looks.records[0]["page"] == "docs/health.md#entropy"


def test_the_csv_has_a_line_for_each_run_and_question(make_run: MakeRun, tmp_path: Path) -> None:
    for seed in (0, 1):
        make_run(tmp_path, "ppo", seed, state="finished" if seed else "diverged")
    answers = tables(tmp_path)[0]
    runs = store.read_sweep(tmp_path)
    assert len(answers.records) == sum(len(run.health) for run in runs) == 26
    assert {record["state"] for record in answers.records} == {"finished", "diverged"}
    told = {(record["run"], record["name"]): record["numbers"] for record in answers.records}
    assert told == {(run.id, found.name): found.numbers for run in runs for found in run.health}


def test_the_page_explains_each_question_and_the_overview_counts(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path, "grpo", 0)
    rewrite(run, entropy=collapsed(1.0))
    runs = store.read_sweep(tmp_path)
    notes = health.render(runs).blocks[-1]
    assert isinstance(notes, Notes)
    assert [note.rpartition("#")[2] for note in notes.items] == [found.name for found in runs[0].health]
    opening = overview.render(runs).blocks[0]
    assert isinstance(opening, Text)
    assert opening.text.endswith("Run health: 1 of 1 runs ask for a look; the page of that name has the answers.")


def test_a_sweep_that_recorded_nothing_has_no_page_and_a_calm_one_says_so(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(tmp_path, "grpo", 0)
    rewrite(run, entropy=[1.0] * 8)
    assert Text("No answer asks for a look.") in health.render(store.read_sweep(tmp_path)).blocks
    (run / "metrics.jsonl").unlink()
    read = store.read_sweep(tmp_path)
    assert health.render(read).blocks == ()
    assert health.health_sentence(read) == ""
