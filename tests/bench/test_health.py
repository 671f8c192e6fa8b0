"""Run health on series with known answers: every question says yes, no, or why it has no answer."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from bench.glossary import METRICS
from bench.health import QUESTIONS, Finding, as_record, health_of
from bench.thresholds import THRESHOLDS

VALIDATED = {"validation": {"every": 10, "problems": 100, "samples": 4}, "rollout": {"group_size": 8}}
CALM: Mapping[str, float] = {
    "reward/mean": 0.3, "reward/accuracy": 0.3, "groups/frac_zero_std": 0.2, "groups/zero_std_all_correct": 0.1,
    "groups/zero_std_all_wrong": 0.1, "entropy": 0.5, "len/incorrect": 20.0, "len/correct": 10.0, "grad_norm": 1.0,
}  # fmt: skip


def records(length: int = 32, /, **given: Any) -> list[dict[str, Any]]:
    """A quiet run with noise, in which some metrics follow a function of the time in [0, 1], or a list."""
    rng = np.random.default_rng(length)
    lines: list[dict[str, Any]] = []
    for i in range(length):
        line: dict[str, Any] = {name: value * (1 + 0.02 * rng.normal()) for name, value in CALM.items()}
        line["reward/accuracy"] = line["reward/mean"]
        for key, value in given.items():
            own = value(i / (length - 1)) if callable(value) else value[i]
            line[key.replace("__", "/")] = own
        if "reward__mean" in given and "reward__accuracy" not in given:
            line["reward/accuracy"] = line["reward/mean"]
        lines.append({"update": i + 1, **line})
    return lines


def answers(lines: list[dict[str, Any]], run: Mapping[str, Any] | None = None) -> dict[str, Finding]:
    return {found.name: found for found in health_of(lines, run)}


def short(finding: Finding) -> tuple[str, bool]:
    return finding.answer, finding.look


def test_every_question_is_always_answered_by_name_and_reads_a_metric_that_exists() -> None:
    names = [question.name for question in QUESTIONS]
    assert len(set(names)) == len(names)
    assert {question.metric for question in QUESTIONS} <= set(METRICS)
    for lines in ([], [{"update": 0, "validation/pass@1": 0.2}], records(), [{"update": 1, **dict.fromkeys(METRICS)}]):
        found = health_of(lines, VALIDATED)
        assert [one.name for one in found] == names
        assert all(one.numbers and one.page == f"docs/health.md#{one.name}" for one in found)


def test_a_quiet_run_asks_only_for_its_reward() -> None:
    found = answers(records())
    assert [name for name, one in found.items() if one.look] == ["reward"]
    assert {name for name, one in found.items() if one.answer == "not measured"} == {
        "verdict", "kl", "critic", "pairs", "chosen", "imitation",
    }  # fmt: skip
    assert found["kl"].numbers == "no reference"
    assert found["critic"].numbers == "no critic"


def test_the_reward_rises_falls_or_stays() -> None:
    rising = answers(records(reward__mean=lambda t: 0.3 + 0.2 * t))["reward"]
    assert short(rising) == ("yes", False)
    assert rising.value == pytest.approx(0.155, abs=0.02)  # last quarter less first eighth of a line of .2
    assert rising.threshold is not None
    assert rising.numbers == f"{rising.value:+.3g} (noise {rising.threshold:.2g})"
    falling = answers(records(reward__mean=lambda t: 0.5 - 0.2 * t))["reward"]
    assert short(falling) == ("no", True)
    assert "reward/mean fell" in falling.text
    assert falling.advice.startswith("lower the learning rate")
    assert "stayed within its noise" in answers(records())["reward"].text


def test_validation_is_preferred_where_the_run_says_how_large_it_is() -> None:
    lines = records(40)
    for update in (10, 20, 30, 40):
        lines[update - 1]["validation/pass@1"] = 0.2 + update / 200
    lines.insert(0, {"update": 0, "validation/pass@1": 0.2})
    found = answers(lines, VALIDATED)["reward"]
    assert short(found) == ("yes", False)
    assert (found.value, found.threshold) == (pytest.approx(0.2), pytest.approx(0.0524, abs=1e-3))
    assert found.text.startswith("validation/pass@1 rose: 0.2 at update 0, 0.4 at update 40; training reward 0.299")
    assert found.metric == "validation/pass@1"
    assert "reward/mean" in answers(lines, {})["reward"].text, "without its size its noise is not known"
    small = {"validation": {"problems": 4, "samples": 2}}
    assert answers(lines, small)["reward"].metric == "reward/mean", "eight samples show nothing, thirty rollouts may"
    assert "of 8 samples" in answers([lines[0], lines[10]], small)["reward"].numbers
    assert "reward/mean" in answers(lines[:9], VALIDATED)["reward"].text, "one validation is no change"


def test_a_rise_that_was_once_far_higher_asks_for_a_look() -> None:
    for last, fell in ((0.45, True), (0.75, False)):  # .8 before that is luck of the best where .75 comes after it
        lines = [{"update": 10 * i, "validation/pass@1": v} for i, v in enumerate((0.3, 0.5, 0.8, 0.7, last))]
        found = answers(lines, VALIDATED)["reward"]
        assert short(found) == ("yes", fell)
        assert ("it was 0.8 at update 20" in found.text) == fell


def test_lengths_that_climb_after_the_reward_has_levelled_off_are_for_nothing() -> None:
    level = {"reward__mean": lambda t: 0.3 + 1.6 * min(t, 0.25)}
    late = answers(records(60, **level, len__incorrect=lambda t: 10 + 40 * max(0.0, t - 0.3)))["longer_wrong"]
    assert short(late) == ("yes", True)
    assert "in the last quarter alone" in late.text
    early = answers(records(60, **level, len__incorrect=lambda t: 10 + 40 * min(t, 0.25)))["longer_wrong"]
    assert short(early) == ("no", False)


def test_validation_speaks_only_of_a_reward_that_is_its_verdict() -> None:
    """A format score that rises is a reward that rose, whatever validation says: that is the next question's."""
    lines = records(reward__mean=lambda t: -0.39 + 1.22 * t, reward__accuracy=lambda t: 0.3)
    lines[-1]["validation/pass@1"] = 0.2
    lines.insert(0, {"update": 0, "validation/pass@1": 0.2})
    found = answers(lines, VALIDATED)
    assert (short(found["reward"]), short(found["verdict"])) == (("yes", False), ("yes", True))
    assert found["reward"].metric == "reward/mean"
    assert "; validation/pass@1 stayed within its noise: 0.2 at update 0, 0.2 at update 32" in found["reward"].text
    longer = records(
        reward__mean=lambda t: -0.39 + 1.22 * t, reward__accuracy=lambda t: 0.3, len__correct=lambda t: 9 + 9 * t
    )
    longer[0]["validation/pass@1"] = longer[-1]["validation/pass@1"] = 0.2
    assert short(answers(longer, VALIDATED)["longer_right"]) == ("no", False)
    early = answers(lines[:5] + lines[-1:], VALIDATED)["reward"]
    assert early.answer == "cannot be told"
    assert early.numbers == "5 values, 8 needed; validation/pass@1 +0 (noise 0.047)"


def test_groups_that_are_all_right_are_success_where_the_accuracy_says_so() -> None:
    flat = {"groups__frac_zero_std": lambda t: t, "groups__zero_std_all_correct": lambda t: t}
    flat["groups__zero_std_all_wrong"] = lambda t: 0.0
    solved = answers(records(**flat, reward__accuracy=lambda t: 0.3 + 0.67 * min(1.0, 1.4 * t)))["all_right"]
    assert short(solved) == ("yes", False)
    assert "success, not collapse" in solved.text
    assert short(answers(records(**flat, reward__accuracy=lambda t: 0.2))["all_right"]) == ("yes", True)
    unknown = answers(records(**flat, reward__accuracy=lambda t: None))["all_right"]
    assert short(unknown) == ("yes", True)
    assert "not known" in unknown.text
    other = answers(records(**flat))
    assert short(other["all_wrong"]) == short(other["tied"]) == ("no", False)


def test_groups_that_are_all_wrong_and_groups_tied_otherwise_are_told_apart() -> None:
    shares = {"groups__frac_zero_std": lambda t: 0.9, "groups__zero_std_all_correct": lambda t: 0.1}
    wrong = answers(records(**shares, groups__zero_std_all_wrong=lambda t: 0.7))
    assert (short(wrong["all_wrong"]), short(wrong["tied"])) == (("yes", True), ("no", False))
    assert wrong["all_wrong"].numbers == "70% of groups, max 50%"
    tied = answers(records(**shares, groups__zero_std_all_wrong=lambda t: 0.1))
    assert (short(tied["all_wrong"]), short(tied["tied"])) == (("no", False), ("yes", True))
    early = answers(records(**shares, groups__zero_std_all_wrong=lambda t: 0.8 if t < 0.5 else 0.2))
    assert early["all_wrong"].answer == "no", "only the last quarter counts"
    assert answers(records(), {"rollout": {"group_size": 1}})["all_wrong"].numbers == "groups of one"


@pytest.mark.parametrize(("end", "answer"), [(0.13, "no"), (0.12, "yes")])
def test_entropy_is_held_against_its_first_value(end: float, answer: str) -> None:
    lines = records(entropy=lambda t: 0.5 if t == 0 else 0.4 if t < 0.7 else end)
    found = answers(lines)["entropy"]
    assert short(found) == (answer, answer == "yes")
    assert found.value == pytest.approx(end / 0.5)
    assert answers(records(entropy=lambda t: 0.0))["entropy"].answer == "cannot be told"


def test_kl_runs_away_where_it_is_far_or_grows_without_levelling_off() -> None:
    level = answers(records(kl__ref_k3=lambda t: 0.3 * min(1.0, 2 * t)))["kl"]
    assert short(level) == ("no", False)
    assert short(answers(records(kl__ref_k3=lambda t: 0.6 * min(1.0, 2 * t)))["kl"]) == ("yes", True)
    growing = answers(records(kl__ref_k3=lambda t: 0.002 * math.exp(5 * t)))["kl"]
    assert short(growing) == ("yes", True)
    assert "quarter before" in growing.numbers
    assert short(answers(records(kl__ref_k3=lambda t: 0.0002 * math.exp(5 * t)))["kl"]) == ("no", False)
    assert answers(records(kl__old_k3=lambda t: 5.0))["kl"].answer == "not measured"


def test_lengths_that_climb_are_a_finding_only_with_a_flat_reward() -> None:
    wrong = answers(records(len__incorrect=lambda t: 20 + 20 * t))
    assert (short(wrong["longer_wrong"]), short(wrong["longer_right"])) == (("yes", True), ("no", False))
    assert wrong["longer_wrong"].value == pytest.approx(38 / 21, abs=0.05)
    right = answers(records(len__correct=lambda t: 20 + 20 * t))
    assert (short(right["longer_wrong"]), short(right["longer_right"])) == (("no", False), ("yes", True))
    bought = answers(records(len__incorrect=lambda t: 20 + 20 * t, reward__mean=lambda t: 0.3 + 0.2 * t))
    assert short(bought["longer_wrong"]) == ("no", False)
    assert "the reward rose" in bought["longer_wrong"].text
    little = answers(records(len__incorrect=lambda t: 20 + 4 * t))
    assert short(little["longer_wrong"]) == ("no", False)
    rng = np.random.default_rng(0)
    noisy = answers(records(8, len__correct=[10, 40, 9, 35, 12, 8, 30, 11 + rng.random()]))
    assert short(noisy["longer_right"]) == ("no", False), "1.6 times, and all of it noise"
    untold = answers(records(len__incorrect=lambda t: 20 + 20 * t, reward__mean=lambda t: None))
    assert untold["longer_wrong"].answer == "cannot be told"


def test_a_reward_that_rises_without_the_verdict_is_told() -> None:
    up, flat = (lambda t: 0.3 + 0.3 * t), (lambda t: 0.3 + 0.01 * (-1) ** round(31 * t))
    hacked = answers(records(reward__mean=up, reward__accuracy=flat))["verdict"]
    assert short(hacked) == ("yes", True)
    assert short(answers(records(reward__mean=up, reward__accuracy=lambda t: 0.9 * up(t)))["verdict"]) == ("no", False)
    assert short(answers(records(reward__mean=flat, reward__accuracy=lambda t: 0.2))["verdict"]) == ("no", False)
    assert answers(records(reward__mean=up))["verdict"].numbers == "the reward is the verdict"


def test_a_run_that_imitates_is_asked_about_that() -> None:
    lines = [{"update": i + 1, "imitation/logp": -1 + 0.5 * i / 20} for i in range(20)]
    found = answers(lines)
    assert short(found["imitation"]) == ("yes", False)
    assert found["critic"].numbers == "not of this objective"


def test_too_few_values_answer_nothing() -> None:
    found = answers(records(7))
    assert {one.answer for one in found.values()} == {"cannot be told", "not measured"}
    assert found["entropy"].numbers == "7 values, 8 needed"
    assert answers(records(2)[:1])["entropy"].numbers == "1 value, 8 needed"
    assert answers([])["kl"].numbers == "no update recorded"
    nothing = answers([{"update": i, **dict.fromkeys(METRICS)} for i in range(1, 20)])
    assert {one.answer for one in nothing.values()} == {"cannot be told"}


def test_one_value_of_a_run_that_samples_all_along_is_not_called_sampled_once() -> None:
    """Nothing was right after the first rollout, so the length of what is right has one value."""
    lines = records(16)
    for line in lines[1:]:
        line.pop("len/correct", None)
    lines[0]["len/correct"] = 5.0
    assert answers(lines)["longer_right"].numbers == "1 value, 8 needed"


def test_nulls_do_not_change_what_the_numbers_say() -> None:
    """As with two updates a rollout, and rollouts without one right answer."""
    lines = records(reward__mean=lambda t: 0.3 + 0.2 * t)
    thin = [one for line in lines for one in (line, {"update": 0, **dict.fromkeys(CALM, math.nan)})]
    numbered = [{**line, "update": i + 1} for i, line in enumerate(thin)]
    assert [one.numbers for one in health_of(numbered)] == [one.numbers for one in health_of(lines)]


def test_a_record_of_health_names_what_asks_for_a_look() -> None:
    lines = records()
    written = as_record(health_of(lines), lines)
    assert (written["through_update"], written["look"]) == (32, ["reward"])
    assert written["findings"][0]["question"] == "Did the reward rise?"
    assert as_record(health_of([]), [])["through_update"] is None


def test_each_threshold_has_a_reason_and_a_reader() -> None:
    assert all(one.reason and one.read_by in ("alarms", "health", "both") for one in THRESHOLDS.values())
