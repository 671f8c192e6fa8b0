"""Alarms: each rule fires beyond its threshold and not at it, and a run keeps, prints and reports what fired."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import alarms, store
from bench.alarms import RULES, Rule, Watch, alarms_of, as_records
from bench.config import Run
from bench.glossary import METRICS
from bench.train import execute

BY_NAME = {rule.name: rule for rule in RULES}


def history(rule: Rule, last: float) -> list[dict[str, float]]:
    """Records in which the metric is 1 (or -1, where larger is worse below), and then `last` times its threshold."""
    usual = -1.0 if rule.metric == "dpo/chosen_logp" else 1.0
    first = [usual] * {"first": 1, "median": 6}.get(rule.test.partition("_")[2], 0)
    values = [*first, rule.limit * usual if first else rule.limit]
    records = [{"update": i, "grad_norm": 1.0, rule.metric: value} for i, value in enumerate(values, start=1)]
    records[-1][rule.metric] += last
    return records


@pytest.mark.parametrize("name", BY_NAME)
def test_a_rule_fires_beyond_its_threshold_and_not_at_it(name: str) -> None:
    rule = BY_NAME[name]
    step = -1e-7 if rule.test.startswith("below") else 1e-7
    for offset in (0.0, -step):
        assert name not in [alarm.name for alarm in alarms_of(history(rule, offset))]
    (alarm,) = [alarm for alarm in alarms_of(history(rule, step)) if alarm.name == name]
    records = history(rule, step)
    assert (alarm.first, alarm.last, alarm.count) == (len(records), len(records), 1)
    assert alarm.value == records[-1][rule.metric]
    assert alarm.threshold == pytest.approx(alarm.value, abs=1e-6)


def test_every_rule_reads_a_metric_that_exists_and_has_a_name_of_its_own() -> None:
    assert {rule.metric for rule in RULES} <= set(METRICS)
    assert len(BY_NAME) == len(RULES)


def test_what_was_not_recorded_raises_nothing() -> None:
    nothing = [{"update": i, **dict.fromkeys(METRICS)} for i in range(3)]
    assert alarms_of(nothing) == []
    assert alarms_of([{"update": 1, "kl/old_k3": float("nan")}, {}]) == []


def test_an_alarm_says_when_how_often_and_against_what() -> None:
    values = [0.0, 0.2, None, 0.05, 0.4, 0.1]
    (alarm,) = alarms_of({"update": 2 * i, "kl/old_k3": value} for i, value in enumerate(values))
    assert (alarm.first, alarm.last, alarm.count, alarm.checked) == (2, 8, 2, 5)
    assert (alarm.value, alarm.threshold) == (0.2, 0.1)
    assert alarm.condition == "kl/old_k3 > 0.1"
    assert "update 2" in alarm.sentence


def test_a_critic_is_not_blamed_while_only_it_is_trained() -> None:
    warming = {"update": 1, "value/explained_variance": -3.0}
    assert alarms_of([warming]) == []
    assert [alarm.first for alarm in alarms_of([warming, {**warming, "update": 2, "grad_norm": 1.0}])] == [2]


def test_a_critic_is_not_blamed_where_the_returns_hardly_differ() -> None:
    """All of a rollout right: a value .05 off is then some 250 times the variance of the returns."""
    off = {"update": 1, "value/explained_variance": -252.0, "grad_norm": 1.0, "returns/std": 0.0}
    assert alarms_of([off]) == []
    (alarm,) = alarms_of([off, {**off, "update": 2, "value/explained_variance": -0.5, "returns/std": 0.4}])
    assert (alarm.name, alarm.first, alarm.checked) == ("critic_worse_than_a_constant", 2, 1)
    assert alarm.condition == "value/explained_variance < -0.05 where returns/std > 0.01"


def test_the_median_is_of_all_earlier_values_and_a_spike_does_not_move_it_at_once() -> None:
    norms = [1.0, 3.0, 2.0, 2.0, 2.0, 20.1, 20.1, 19.9]
    (alarm,) = alarms_of({"update": i, "grad_norm": value} for i, value in enumerate(norms))
    assert (alarm.first, alarm.last, alarm.threshold) == (5, 6, 20.0)
    assert alarms_of({"update": i, "grad_norm": float(i > 6)} for i in range(9)) == [], "ten times nothing is nothing"
    early = [{"update": i, "grad_norm": value} for i, value in enumerate([1.0, 1.0, 99.0])]
    assert alarms_of(early) == []


def test_a_watch_tells_of_each_alarm_once() -> None:
    watch = Watch()
    told = [watch.see({"update": i, "len/clipped_frac": value}) for i, value in enumerate([0.1, 0.4, 0.5])]
    assert [[alarm.name for alarm in new] for new in told] == [[], ["many_truncated"], []]
    assert watch.alarms["many_truncated"].count == 2


@pytest.mark.slow
def test_a_run_prints_an_alarm_once_and_keeps_it(
    tiny_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A threshold that every update crosses: one line, a file, and the same alarms from the metrics alone."""
    rule = Rule("moved", "grad_norm", "above", 0.0, "the policy moved", "nothing")
    monkeypatch.setattr(alarms, "RULES", (rule,))
    directory = tmp_path / "run"
    assert execute(tiny_run("grpo"), directory).state == "finished"
    lines = [line for line in capsys.readouterr().err.splitlines() if "alarm moved" in line]
    assert len(lines) == 1
    assert lines[0].startswith("grpo seed 0: alarm moved at update 1: grad_norm > 0 (")
    record = store.read_run(directory)
    assert record.alarms == json.loads((directory / "alarms.json").read_text()) == as_records(alarms_of(record.metrics))
    assert record.alarms is not None
    assert [(found["name"], found["count"]) for found in record.alarms] == [("moved", 4)]
