"""Rounds of pairs without a pair: after the first the run goes on, as an online run does after a flat rollout."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import checkpoint, kept
from bench.casting import make_cast, make_learner
from bench.checkpoint import weights_digest
from bench.config import Run, TinyModel
from bench.generate import Completion
from bench.instruments import Instruments
from bench.learn_pairs import PairLearner
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.models import create_tiny
from bench.rollout import Group, NothingToLearn, Sampler
from bench.train import execute

MakeRun = Callable[..., Run]
THREE: dict[str, Any] = {
    "validation.every": 0, "validation.problems": 100, "validation.samples": 4, "meter.every": 0,
    "evaluation.problems": 2, "evaluation.samples": 2, "evaluation.start": False,
    "objective.pairing.rounds": 3, "objective.pairing.require_termination": False, "budget.updates": 6,
}  # fmt: skip


def learner_of(run: Run, flat: set[int], directory: Path | None = None, worth: bool = True) -> PairLearner:
    """A learner whose samples of a prompt are all right (or unscorable) in these rollouts, else half of them."""

    class Flat(Sampler):
        def groups(self, model: Any, problems: Any, round_index: int) -> list[Group]:
            found = super().groups(model, problems, round_index)
            return [levelled(group, worth) for group in found] if round_index in flat else found

    assert isinstance(run.model, TinyModel)
    instruments = Instruments(PhaseClock(), MemoryMeter("cpu"))
    cast = make_cast(run, create_tiny(run.model, run.alphabet, 0))
    learner = make_learner(run, cast, Flat(run, run.task, half_right, instruments), instruments, directory)
    assert isinstance(learner, PairLearner)
    return learner


def levelled(group: Group, scored: bool = True) -> Group:
    """The group with one reward for all, or with none."""
    reward, observed = (1.0, True) if scored else (float("nan"), None)
    return replace(group, members=tuple(replace(m, reward=reward, observed=observed) for m in group.members))


def half_right(model: Any, prompts: Any, keys: Any, **_: Any) -> list[list[Completion]]:
    found: list[list[Completion]] = []
    for prompt, own in zip(prompts, keys, strict=True):
        text = model.decode(prompt)
        answers = [str(sum(map(int, text.rstrip("=").split("+")))), text[0]]
        ids = [tuple(model.encode_completion(answers[i % 2])) for i in range(len(own))]
        found.append([Completion(one, True, (-1.0,) * len(one)) for one in ids])
    return found


@pytest.mark.parametrize("scored", [True, False])
def test_a_later_round_without_a_pair_takes_no_step_and_the_next_one_goes_on(
    scored: bool, tiny_run: MakeRun, tmp_path: Path
) -> None:
    learner = learner_of(tiny_run("dpo", **THREE), {1}, tmp_path, scored)
    learner.prepare()
    records: list[dict[str, Any]] = []
    weights: list[str] = []
    for _ in range(6):
        records += learner.advance()
        weights.append(weights_digest(learner.cast.policy.network))
    assert [record["update"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record.get("dpo/round") for record in records] == [1, None, 2, None, 3, None]
    assert ["loss" in record for record in records] == [True, True, False, False, True, True]
    assert records[2]["dpo/num_pairs"] == 0
    assert records[3] == {"update": 4, "tokens/trained": records[1]["tokens/trained"]}
    assert weights[1] == weights[2] == weights[3] != weights[4]
    assert [record["completions/generated"] for record in records[::2]] == [64, 128, 192]
    told = json.loads((tmp_path / "pairs.json").read_text())
    assert [(line["update"], line["dpo/num_pairs"] > 0) for line in told] == [(1, True), (3, False), (5, True)]


def test_the_first_round_without_a_pair_still_ends_the_run(tiny_run: MakeRun) -> None:
    with pytest.raises(NothingToLearn, match=r"no preference pair in the 8 prompts x 8 completions of round 1"):
        learner_of(tiny_run("dpo", **THREE), {0}).prepare()
    with pytest.raises(NothingToLearn, match=r"could be scored"):
        learner_of(tiny_run("dpo", **THREE), {0}, worth=False).prepare()


@pytest.mark.parametrize("at", [2, 3])
def test_a_resume_at_or_within_an_empty_round_goes_on_as_if_undisturbed(
    at: int, tiny_run: MakeRun, tmp_path: Path
) -> None:
    run = tiny_run("dpo", **THREE)
    whole = learner_of(run, {1}, tmp_path / "whole")
    whole.prepare()
    records = [record for _ in range(6) for record in whole.advance()]
    stopped = learner_of(run, {1}, tmp_path / "stopped")
    stopped.prepare()
    for _ in range(at):
        next(stopped.advance())
    folder = checkpoint.save(tmp_path / "checkpoints", stopped.cast, keep=1, extra={})
    resumed = learner_of(run, {1}, tmp_path / "stopped")
    resumed.prepare()
    checkpoint.restore(folder, resumed.cast)
    again = [record for _ in range(6 - at) for record in resumed.advance()]
    assert json.dumps(again) == json.dumps(records[at:])
    for number in range(3):
        one, two = (kept.path_of(tmp_path / name / "pairs", number) for name in ("whole", "stopped"))
        assert one.read_bytes() == two.read_bytes()
    assert torch.equal(resumed.reference, whole.reference)


@pytest.mark.slow
def test_a_whole_run_with_an_empty_round_finishes_and_so_does_one_stopped_within_it(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, groups = checkpoint.save, Sampler.groups

    def flat(self: Sampler, model: Any, problems: Any, index: int) -> list[Group]:
        found = groups(self, model, problems, index)
        return [levelled(group) for group in found] if index == 1 else found

    def save_then_stop(directory: Path, cast: Any, **more: Any) -> None:
        original(directory, cast, **more)
        if cast.progress.update == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Sampler, "groups", flat)
    watched = {"validation.every": 1, "validation.problems": 4, "meter.every": 2, "checkpoint.every": 1}
    run = tiny_run("dpo_nll", **{**THREE, **watched})
    status = execute(run, tmp_path / "whole")
    assert status.state == "finished", status.error
    monkeypatch.setattr(checkpoint, "save", save_then_stop)
    assert execute(run, tmp_path / "stopped").state == "interrupted"
    monkeypatch.setattr(checkpoint, "save", original)
    assert execute(run, tmp_path / "stopped").state == "finished"
    records = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()]
    assert [record["update"] for record in records if "validation/pass@1" in record] == [0, 1, 2, 3, 4, 5, 6]
    for name in ("metrics.jsonl", "final.json", "pairs.json", "alarms.json", "eval/test.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "stopped" / name).read_bytes(), name
