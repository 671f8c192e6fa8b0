"""What stands beside a score is what the manifests say, and what casts doubt on a score is a warning."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import store
from bench.evaluation import Outcome, estimates, outcome_matrix, read_estimates, write_estimates
from bench.evaluation.cautions import cautions as sentences
from reports import comparison, evaluations, overview, transfer
from reports.parts.checks import warnings_of
from reports.parts.table import Table

HALF = {1: [0.5, 0.5], 16: [0.75, 1.0]}


@pytest.fixture
def run(tmp_path: Path, bare_run) -> Path:
    return bare_run(tmp_path, "grpo", 0, {"start": HALF, "test": HALF})


def rows(module, sweep: Path, name: str) -> dict[str, dict[str, str]]:
    """The rows of a table by what stands in their first column."""
    blocks = module.render(store.read_sweep(sweep)).blocks
    table = next(block for block in blocks if isinstance(block, Table) and block.name.startswith(name))
    return {row[0].text: dict(zip(table.columns, map(str, row), strict=True)) for row in table.rows}


def warnings(sweep: Path) -> list[str]:
    return warnings_of(store.read_sweep(sweep))


def test_the_answers_of_each_model(run: Path, set_manifest) -> None:
    """Timeouts are responses, 3 of 128, added up over evaluations; strict and flexible stand apart."""
    set_manifest(run, "test", timed_out_rate=3 / 128, truncated_rate=0.03, strict_accuracy=0.4, guess_rate=0.01)
    shown = rows(evaluations, run.parent, "answers")["grpo"]
    assert (shown["Timeouts"], shown["Truncated"], shown["Duplicates"]) == ("3", "3.0 %", "25.0 %")
    assert (shown["Strict"], shown["Flexible"], shown["Given parsed"]) == ("0.400", "0.500", "0.500")
    share = (1 - 0.99**16) / 0.875
    assert shown["Guesses"] == f"{100 * share:.1f} % flagged"
    assert rows(evaluations, run.parent, "answers")["Starting model"]["Guesses"] == "n/a"
    assert rows(overview, run.parent, "results")["grpo"]["Problems, samples each"] == "2 64"
    assert rows(overview, run.parent, "results")["grpo"]["Truncated, unparsed, timeouts"] == "3.0 % 3.0 % 3"
    assert warnings(run.parent) == [
        "grpo on t: the grader timed out on 3 responses.",
        f"On t blind guesses alone (chance 0.01 each) would reach up to {100 * share:.1f} % of Pass@16: grpo.",
    ]


def test_models_in_one_table_are_sampled_alike(run: Path, set_manifest) -> None:
    set_manifest(run, "test", temperature=0.6)
    set_manifest(run, "start", top_p=...)  # what is not known is no difference
    assert warnings(run.parent) == ["On t the models were evaluated with different temperatures (0.6, 1.0)."]


def test_both_decodings_are_in_the_header(run: Path, set_manifest) -> None:
    for name in ("start", "test"):
        set_manifest(run, name, temperature=0.6, top_p=0.95)
    text = overview.render(store.read_sweep(run.parent)).blocks[0].text
    assert "temperature 1.0 and top-p 1.0 in training, temperature 0.6 and top-p 0.95 in evaluation" in text
    shown = rows(evaluations, run.parent, "evaluations")["grpo"]
    assert (shown["Temperature, top-p"], shown["In training"]) == ("0.6 0.95", "1.0 1.0")


def test_an_older_run_has_no_such_fields(run: Path, set_manifest) -> None:
    old = ("timed_out_rate", "parsed_rate", "num_samples")
    new = ("top_p", "prompt", "verifier_version", "duplicate_rate", "identical", "strict_accuracy", "tie_rate")
    set_manifest(run, "test", **dict.fromkeys((*old, *new), ...))
    shown = rows(evaluations, run.parent, "evaluations")["grpo"]
    assert (shown["Temperature, top-p"], shown["Prompt"], shown["Overlap"]) == ("1.0 n/a", "n/a", "n/a")
    answers = rows(evaluations, run.parent, "answers")["grpo"]
    assert [answers[key] for key in ("Duplicates", "Strict", "Tied at largest K", "Timeouts")] == ["n/a"] * 4
    assert set(rows(evaluations, run.parent, "votes")["grpo"].values()) == {"grpo", "n/a", "0.875"}
    assert warnings(run.parent) == []


@pytest.mark.parametrize(("share", "warned"), [(0.1, False), (0.3, True)])
def test_many_cut_answers_are_a_warning(run: Path, set_manifest, share: float, warned: bool) -> None:
    set_manifest(run, "start", truncated_rate=share)
    line = "Starting model on t: 30.0 % of the completions were cut at the token limit (32)."
    assert warnings(run.parent) == ([line] if warned else [])
    assert rows(overview, run.parent, "results")["Starting model"]["Truncated, unparsed, timeouts"].startswith(
        f"{100 * share:.1f} %"
    )


def test_identical_samples_are_a_warning(run: Path, set_manifest) -> None:
    set_manifest(run, "test", identical=True, temperature=0.0)
    assert warnings(run.parent)[-1].startswith("grpo on t: samples are identical, pass@k equals pass@1;")


def test_the_rules_of_the_vote_are_those_of_the_estimates(run: Path) -> None:
    """A 2:2 tie is won, lost or halved by the tie rule; two answers of four without a key change with their rule."""
    verdicts = {"tie": [("a", True), ("a", True), ("b", False), ("b", False)]}
    verdicts["none"] = [("a", True), (None, False), (None, False), (None, False)]
    outcomes = [
        Outcome(problem, sample, correct, key, key is not None, False, False, 1, "last_number")
        for problem, answers in verdicts.items()
        for sample, (key, correct) in enumerate(answers)
    ]
    write_estimates(run / "eval" / "test.estimates.parquet", estimates(outcome_matrix(outcomes), [1, 4]))
    write_estimates(run / "eval" / "start.estimates.parquet", estimates(outcome_matrix(outcomes), [1, 4]))
    shown = rows(evaluations, run.parent, "votes")["grpo"]
    ties = [shown[key] for key in ("Ties wrong", "Ties at random", "Ties right")]
    assert ties == ["0.500", "0.750", "1.000"]
    assert shown["No answer: no vote"] == "0.750"
    assert shown["No answer: a vote"] == "0.250"  # three empty answers outvote the one correct
    assert shown["Gold-free"] == "0.750"


@pytest.mark.parametrize(
    ("content", "cell", "lines"),
    [
        ({"exact": 0, "ten_gram": 0, "num_test": 100}, "0 / 0", 0),
        ({"exact": 2, "ten_gram": 5, "num_test": 100}, "2 / 5", 1),
        ({"disjoint": True, "why": "other terms"}, "none by construction", 0),
    ],
)
def test_overlap_is_shown_and_warned_of(run: Path, content, cell: str, lines: int) -> None:
    store.write_json(run / "overlap.json", content)
    assert rows(evaluations, run.parent, "evaluations")["grpo"]["Overlap"] == cell
    found = [line for line in warnings(run.parent) if "stand in the training data" in line]
    assert len(found) == lines
    assert all("2 of 100 word for word, 5 of 100 by a run of ten words" in line for line in found)


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ({"source": "verifier", "noise": None, "sparsity": 1.0}, None),
        ({"noise": {"false_positive": 0.0, "false_negative": 0.0}}, None),
        ({"source": "random"}, "a random reward"),
        ({"noise": {"false_positive": 0.1, "false_negative": 0.0}}, "a noisy verdict (10.0 % false positives)"),
        ({"source": "format_only", "format": 1.0}, "trained on a reward for the format alone;"),
        ({"source": "verifier", "format": 0.5}, "trained on a score for the format (weight 0.5);"),
        ({"functions": [{"function": "a:b"}]}, "trained on the user's own reward function beside the verdict;"),
        (
            {"source": "functions", "functions": [{"function": "a:b"}, {"function": "a:c"}], "format": 0.2},
            "trained on the user's own reward functions (2) and a score for the format (weight 0.2);",
        ),
        ({"source": "verifier", "correct": 2.0, "wrong": -1.0, "functions": []}, None),
    ],
)
def test_a_reward_that_is_not_the_verdict_is_a_warning(tmp_path: Path, bare_run, reward, words: str | None) -> None:
    bare_run(tmp_path, "grpo", 0, {"start": HALF, "test": HALF}, reward=reward)
    found = warnings(tmp_path)
    assert len(found) == (words is not None)
    assert all(words in line and line.endswith("evaluation used the true verdict.") for line in found if words)


def test_sparse_labels_are_not_neutral_in_compute(tmp_path: Path, bare_run) -> None:
    """At equal updates one algorithm samples on, one trains on less, one forms fewer pairs; and one was not sparse."""
    kept = {"kind": "policy_gradient", "selection": {"kind": "keep_all"}}
    dropped = {"kind": "policy_gradient", "selection": {"kind": "drop_uniform_groups"}}
    for name, objective in {"dapo": dropped, "dpo": {"kind": "preference"}, "grpo": kept, "rloo": kept}.items():
        reward = {"source": "verifier", "sparsity": 0.25 if name != "rloo" else 1.0}
        bare_run(tmp_path, name, 0, {"start": HALF, "test": HALF}, objective=objective, reward=reward)
    found = warnings(tmp_path)
    assert sum("labels for 25.0 % of the prompts or pairs; evaluation used the true verdict." in w for w in found) == 3
    assert found[-1] == (
        "On t equal updates are not equal compute or data, for labels are sparse (dapo: replaces prompts without a "
        "label, sampling about 4 times as many; dpo: learns from about 25 % of its pairs; grpo: trains on batches cut "
        "to about 25 %)."
    )


def test_one_answer_that_is_repeated_is_one_guess(run: Path, set_manifest) -> None:
    """A chance of .01 is flagged at K = 16, and not where all 64 samples are the same."""
    facts = {"guess_rate": 0.01, "samples": 64, "ks": [1, 16], "timed_out_rate": 0.0, "truncated_rate": 0.0}
    for identical, flag in ((False, "flagged"), (True, "")):
        set_manifest(run, "test", **facts, identical=identical)
        assert rows(evaluations, run.parent, "answers")["grpo"]["Guesses"].endswith(f"% {flag}".strip())
        assert any("blind guesses" in line for line in warnings(run.parent)) is not identical
        assert any("blind guesses" in line for line in sentences(facts | {"identical": identical})) is not identical
    assert any("blind guesses" in line for line in sentences(facts | {"identical": True, "guess_rate": 0.3}))


def marks(page) -> list[tuple[str, bool, bool]]:
    """Of every table its name, whether a cell carries a mark, and whether its caption explains marks."""
    tables = [block for block in page.blocks if isinstance(block, Table)]
    marked = [
        any(detail.endswith("*") for row in table.rows for cell in row for detail in cell.details) for table in tables
    ]
    return [(one.name, mark, "Caution (*): " in one.caption) for one, mark in zip(tables, marked, strict=True)]


def test_every_mark_is_explained_in_its_caption(tmp_path: Path, bare_run) -> None:
    """Starting models and other prompts too: of three problems in a starting model few carry anything."""
    few = {1: [0.25, 0.5, 0.0], 16: [0.5, 1.0, 0.0]}
    many = {k: np.tile([0.2, 0.3], 12).round(6).tolist() for k in (1, 16)}
    evaluations_ = {"start": few, "start_few_shot_4": few, "start_other": many, "test": many}
    bare_run(tmp_path, "grpo", 0, evaluations_)
    found = store.read_sweep(tmp_path)
    seen = [one for module in (overview, transfer, comparison) for one in marks(module.render(found))]
    assert {name for name, mark, _ in seen if mark} == {"results_t", "prompts_t"}
    assert all(mark == explained for _, mark, explained in seen), seen


def test_transfer_is_paired_and_prompts_are_the_starting_models(tmp_path: Path, bare_run, set_manifest) -> None:
    """On the other task +.25 and +.15: mean .2; its evaluations never enter the scores of the training task."""
    other = {"start_harder": {1: [0.25, 0.5]}, "test_harder": {1: [0.5, 0.65]}, "start_few_shot_4": {1: [0.75, 0.75]}}
    for seed in (0, 1):
        run = bare_run(tmp_path, "grpo", seed, {"start": HALF, "test": HALF, **other})
        set_manifest(run, "test_harder", truncated_rate=0.4)
    moved = rows(transfer, tmp_path, "transfer")["harder"]
    assert (moved["Algorithm"], moved["Seeds"]) == ("grpo", "2 of 2")
    assert moved["Change in Pass@1"].startswith("+0.200 [")
    prompts = rows(transfer, tmp_path, "prompts")
    assert {name: row["Pass@1"].split()[0] for name, row in prompts.items()} == {
        "as in training": "0.500",
        "few shot 4": "0.750",
    }
    assert rows(overview, tmp_path, "results")["grpo"]["Pass@1"].startswith("0.500")
    models = list(rows(evaluations, tmp_path, "evaluations"))
    assert models == [
        "Starting model",
        "Starting model on harder",
        "Starting model, prompt few shot 4",
        "grpo",
        "grpo on harder",
    ]
    assert "grpo on harder: up to 40.0 % of the completions were cut at the token limit (32)." in warnings(tmp_path)


def test_without_other_tasks_there_is_no_page(run: Path) -> None:
    assert transfer.render(store.read_sweep(run.parent)).blocks == ()


def test_a_problem_whose_samples_are_all_unparsed_scores_nothing_and_counts(run: Path) -> None:
    path = run / "eval" / "test.estimates.parquet"
    found = read_estimates(path)
    zero = np.array([[0.0, 0.0], [0.5, 1.0]])
    write_estimates(path, replace(found, c=np.array([0, 32]), passes=zero, majorities=zero))
    assert rows(overview, run.parent, "results")["grpo"]["Pass@1"].startswith("0.250")
