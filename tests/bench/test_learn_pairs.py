"""Preference rounds: the matched budget, the reference of each round, and a resume that finds the very same pairs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.axes.preference import GradedPairs
from bench import checkpoint, kept
from bench.casting import make_cast, make_learner
from bench.config import Run, TinyModel
from bench.generate import Completion
from bench.glossary import METRICS
from bench.instruments import Instruments
from bench.kept import Kept, Maker
from bench.learn_imitation import ImitationLearner
from bench.learn_pairs import PairLearner, sides_of, summed_logps
from bench.learner import Learner
from bench.loading import ConfigError
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.models import create_tiny
from bench.pairs import all_pairs_of, offer_of, paired, pairs_of
from bench.rollout import Graded, Group, PromptStream, Sampler
from bench.seeding import stream_key, uniforms
from bench.train import execute
from tasks.parts.problem import Grade, Problem

MakeRun = Callable[..., Run]
QUIET: dict[str, Any] = {
    "validation.every": 0, "validation.problems": 100, "validation.samples": 4,
    "evaluation.problems": 2, "evaluation.samples": 2, "evaluation.start": False, "meter.every": 0,
}  # fmt: skip
# The tiny model ends few of its samples, and a pair that costs a sample its end is fine for a test of the plumbing.
ITERATIVE: dict[str, Any] = {**QUIET, "objective.pairing.rounds": 2, "objective.pairing.require_termination": False}


def lines(directory: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / name).read_text().splitlines()]


def learner_of(run: Run, directory: Path | None = None) -> PairLearner:
    learner = any_learner_of(run, directory)
    assert isinstance(learner, PairLearner)
    return learner


def any_learner_of(run: Run, directory: Path | None) -> Learner:
    assert isinstance(run.model, TinyModel)
    instruments = Instruments(PhaseClock(), MemoryMeter("cpu"))
    cast = make_cast(run, create_tiny(run.model, run.alphabet, 0))
    return make_learner(run, cast, Sampler(run, run.task, right_or_wrong, instruments), instruments, directory)


def right_or_wrong(model: Any, prompts: Any, keys: Any, **_: Any) -> list[list[Completion]]:
    """Half of the completions are the sum of their prompt, "3+4=" say, and the others are its first digit."""
    found: list[list[Completion]] = []
    for prompt, own in zip(prompts, keys, strict=True):
        text = model.decode(prompt)
        answers = [str(sum(map(int, text.rstrip("=").split("+")))), text[0]]
        ids = [tuple(model.encode_completion(answers[i % 2])) for i in range(len(own))]
        found.append([Completion(one, True, (-1.0,) * len(one)) for one in ids])
    return found


@pytest.mark.slow
def test_an_iterative_run_that_was_stopped_ends_as_one_that_was_not(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a round, where the restored policy samples the next one, and within one, whose policy is gone: the
    same metrics byte for byte, pairs and weights. Where the pairs are lost, from the checkpoint before the round."""
    run = tiny_run("dpo", **ITERATIVE, **{"checkpoint.every": 1, "checkpoint.keep": 4})
    assert execute(run, tmp_path / "whole").state == "finished"
    original, groups, sampled = checkpoint.save, Sampler.groups, list[int]()

    def counted(self: Sampler, *arguments: Any) -> list[Group]:
        sampled.append(arguments[-1])
        return groups(self, *arguments)

    monkeypatch.setattr(Sampler, "groups", counted)
    for update, lost, sampled_after in ((2, False, [1]), (3, False, []), (3, True, [1])):

        def save_then_stop(directory: Path, cast: Any, *, at: int = update, **knobs: Any) -> None:
            original(directory, cast, **knobs)
            if cast.progress.update == at:
                raise KeyboardInterrupt

        stopped = tmp_path / f"stopped_{update}_{lost}"
        monkeypatch.setattr(checkpoint, "save", save_then_stop)
        assert execute(run, stopped).state == "interrupted"
        monkeypatch.setattr(checkpoint, "save", original)
        sampled.clear()
        if lost:
            (stopped / "pairs/round_0002.safetensors").unlink()
        assert execute(run, stopped).state == "finished"
        assert sampled == sampled_after
        for name in ("metrics.jsonl", "final.json", "pairs.json", *(f"pairs/round_000{i}.safetensors" for i in (1, 2))):
            assert (tmp_path / "whole" / name).read_bytes() == (stopped / name).read_bytes()


def test_rounds_together_are_the_budget_of_an_online_run(
    tiny_run: MakeRun, tmp_path: Path, counted_alike: Callable[[Path], bool]
) -> None:
    """Two rounds of an 8-update run sample the prompts of its four rollouts, and each update learns from no more
    completions than an online one; what is known of a round stands in its first update and in pairs.json."""
    run = tiny_run("dpo", **ITERATIVE, **{"budget.updates": 8})
    assert execute(run, tmp_path / "run").state == "finished"
    records = lines(tmp_path / "run")
    with_round = [record for record in records if "dpo/round" in record]
    assert [(record["update"], record["dpo/round"]) for record in with_round] == [(1, 1), (5, 2)]
    assert [record["completions/generated"] for record in with_round] == [2 * 64, 4 * 64]
    assert with_round[0]["dpo/prompts_sampled"] == with_round[1]["dpo/prompts_sampled"] == 16
    told = json.loads((tmp_path / "run/pairs.json").read_text())
    assert told == [{name: record[name] for name in own} for own, record in zip(told, with_round, strict=True)]
    assert set().union(*map(set, records), *map(set, told)) <= set(METRICS)
    assert counted_alike(tmp_path / "run")


def test_each_round_takes_its_prompts_and_its_reference_from_its_own_beginning(tiny_run: MakeRun) -> None:
    """The second round holds the online run's later prompts. Its first loss is log 2 again, because the policy is its
    own reference; that of the first round is log 2 only at the start."""
    run = tiny_run("dpo", **{**ITERATIVE, "optimizer.lr": 1e-2})
    learner = learner_of(run)
    learner.prepare()
    stream, policy = PromptStream(run.task, run.seed, run.rollout.prompts), learner.cast.policy
    seen: list[set[tuple[int, ...]]] = []
    losses: list[float] = []
    for _ in range(4):
        (record,) = learner.advance()
        seen.append({pair.prompt_ids for pair in learner.pairs})
        losses.append(record["loss"])
    expected = [{tuple(policy.encode_prompt(p.prompt)) for p in stream.round(index)} for index in range(2)]
    assert seen[0] == seen[1] <= expected[0]
    assert seen[2] == seen[3] <= expected[1]
    log_2 = torch.tensor(2.0).log().item()
    assert losses[0] == pytest.approx(log_2, abs=1e-6)
    assert losses[2] == pytest.approx(log_2, abs=1e-6)
    assert abs(losses[1] - log_2) > 1e-3


@pytest.mark.parametrize("kept_moments", [False, True])
def test_the_moments_are_forgotten_at_a_new_round_or_kept(kept_moments: bool, tiny_run: MakeRun) -> None:
    learner = learner_of(tiny_run("dpo", **ITERATIVE, **{"objective.pairing.keep_optimizer": kept_moments}))
    learner.prepare()
    steps: list[int] = []
    for _ in range(4):
        next(learner.advance())
        states = learner.cast.optimizer.state.values()
        steps.append(int({float(state["step"]) for state in states}.pop()))
    assert steps == ([1, 2, 3, 4] if kept_moments else [1, 2, 1, 2])


def test_what_is_kept_is_taken_again_only_where_run_weights_and_content_are_the_same(
    tiny_run: MakeRun, tmp_path: Path
) -> None:
    """A file of another run, of other weights or with a changed byte is made anew; of a round that has begun that
    cannot be, and the run says so."""
    run = tiny_run("dpo", **ITERATIVE)
    first = learner_of(run, tmp_path)
    first.prepare()
    path = kept.path_of(tmp_path / "pairs", 0)
    whole = path.read_bytes()
    found = kept.read(tmp_path / "pairs", 0)
    assert found is not None
    assert found[1] == Maker(run.id, checkpoint.weights_digest(first.cast.policy.network))
    assert found[0].digest == first.round.digest
    assert torch.equal(found[0].numbers["reference"], first.reference)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert kept.read(tmp_path / "pairs", 0) is None
    for damage in (lambda: path.write_bytes(whole[: len(whole) // 2]), path.unlink):
        damage()
        learner_of(run, tmp_path).prepare()
        assert path.read_bytes() == whole
    other = learner_of(run, tmp_path)
    with torch.no_grad():
        next(other.cast.policy.network.parameters()).mul_(1.5)
    other.prepare()
    assert path.read_bytes() != whole
    next(first.advance())
    with pytest.raises(kept.RoundLost, match=r"update 1 lies within round 1.*remove the run's checkpoints"):
        first._entered(0)


def test_accepted_samples_are_sampled_once_also_where_the_run_starts_again(tiny_run: MakeRun, tmp_path: Path) -> None:
    run = tiny_run("rft", **QUIET)
    first, second = any_learner_of(run, tmp_path), any_learner_of(run, tmp_path)
    assert isinstance(first, ImitationLearner)
    assert isinstance(second, ImitationLearner)
    first.prepare()
    tokens = first.instruments.clock.take(attempt=1, update=0, metered=False)["tokens"]
    second.prepare()
    again = second.instruments.clock.take(attempt=1, update=0, metered=False)["tokens"]
    assert (tokens["generated"] > 0, again["generated"]) == (True, 0)
    assert (first.examples, list(first.found.items())) == (second.examples, list(second.found.items()))


def test_kept_numbers_come_back_as_they_were(tmp_path: Path) -> None:
    texts = {"chosen": [(1, 2, 3), (), (70000,)]}
    record = Kept(texts, {"found": {"a": 0.1, "b": float("nan")}}, {"reference": torch.tensor([[0.1, -1e-30]])})
    kept.write(tmp_path, 3, record, Maker("run", "weights"))
    found = kept.read(tmp_path, 3)
    assert found is not None
    assert found[0].texts == texts
    assert list(found[0].about["found"]) == ["a", "b"]
    assert torch.equal(found[0].numbers["reference"], record.numbers["reference"])
    assert found[0].digest == record.digest
    assert kept.read(tmp_path, 4) is None


def test_the_reference_is_taken_of_the_pairs_that_an_update_comes_to(tiny_run: MakeRun) -> None:
    run = tiny_run("dpo", **{**ITERATIVE, "objective.pairing.rounds": 1, "rollout.updates_per_rollout": 8,
                            "budget.updates": 8})  # fmt: skip
    learner = learner_of(run)
    learner.prepare()
    assert learner.pairs_per_update == 4
    needed = ~learner.reference.isnan().any(dim=1)
    assert 0 < needed.sum() <= min(32, len(learner.pairs))
    sides = sides_of([p for p, take in zip(learner.pairs, needed, strict=True) if take], 0, learner.device)
    with torch.no_grad():
        expected = summed_logps(learner.cast.policy.network, sides)
    torch.testing.assert_close(learner.reference[needed], expected)


# Pairs of a group


def group_of(*members: tuple[tuple[int, ...], bool, bool], solution: str | None = None) -> Group:
    """A group from (tokens, correct, terminated) of each completion."""

    def graded(tokens: tuple[int, ...], correct: bool, terminated: bool) -> Graded:
        grade = Grade(correct=correct, answer_key=None, method="end", parsed=True, truncated=not terminated)
        return Graded(Completion(tokens, terminated, (-1.0,) * len(tokens)), "", grade, float(correct), correct)

    problem = Problem(id="p/0", prompt="", gold="", solution=solution)
    return Group(problem, (9,), tuple(graded(*member) for member in members))


def test_what_is_left_out_of_a_group_is_counted() -> None:
    """Two right ones of which one is a repeat, a truncated one, a wrong one."""
    group = group_of(((1,), True, True), ((1,), True, True), ((2, 2), False, False), ((3,), False, True))
    offer = offer_of(GradedPairs(), group)
    assert (offer.chosen, offer.rejected) == (((1,),), ((3,),))
    assert (offer.identical, offer.truncated, offer.tied) == (1, 1, 0)
    allowed = offer_of(GradedPairs(require_termination=False), group)
    assert (allowed.rejected, allowed.truncated) == (((2, 2), (3,)), 0)
    right = offer_of(GradedPairs(), group_of(((1,), True, True), ((2,), True, True)))
    assert (right.chosen, right.rejected, right.tied) == ((), (), 2)


def test_the_worked_solution_stands_in_where_all_are_wrong_and_only_there(tiny_run: MakeRun) -> None:
    wrong, mixed = group_of(((2,), False, True), ((3,), False, True)), group_of(((2,), False, True), ((1,), True, True))
    pairing = GradedPairs(gold_solution=True)
    offer = offer_of(pairing, wrong, (7, 8))
    assert (offer.chosen, offer.rejected, offer.gold, offer.tied) == (((7, 8),), ((2,), (3,)), True, 0)
    made = paired(tiny_run("dpo"), pairing, (9,), offer, 0)
    assert {(pair.chosen, pair.rejected) for pair in made} == {((7, 8), (2,)), ((7, 8), (3,))}
    assert offer_of(pairing, mixed, (7, 8)) == offer_of(pairing, mixed)
    assert offer_of(pairing, wrong).chosen == ()


def test_sparsity_is_a_share_of_the_pairs(tiny_run: MakeRun) -> None:
    whole, run = learner_of(tiny_run("dpo", **ITERATIVE)), tiny_run("dpo", **ITERATIVE, **{"reward.sparsity": 0.5})
    learner = learner_of(run)
    whole.prepare()
    learner.prepare()
    assert 0 < len(learner.pairs) < len(whole.pairs)
    assert set(learner.pairs) <= set(whole.pairs)
    assert learner.found["reward/labelled_rate"] == len(learner.pairs) / len(whole.pairs)
    assert learner.found["reward/num_unscorable"] == 0
    group = group_of(*(((i,), i % 2 == 0, True) for i in range(12)))
    made = all_pairs_of(run, GradedPairs(), group, 7)
    draws = uniforms([stream_key(run.seed, "pair label", 7)], 0, len(made))[0]
    assert pairs_of(run, GradedPairs(), group, 7) == [p for p, d in zip(made, draws, strict=True) if d < 0.5]


# Configuration


@pytest.mark.parametrize(
    ("knobs", "line"),
    [
        (
            {"objective.pairing.rounds": 3},
            "objective.pairing.rounds: 3 given, must divide the 2 rollouts of an online run of this budget "
            "(budget.updates 4 / 2 updates a rollout), because each round samples as many of them; must be 1, 2",
        ),
        ({"objective.pairing.keep_optimizer": True}, "objective.pairing.keep_optimizer: true given, but there is one"),
        (
            {"objective.pairing.length_match": True, "rollout.group_size": 2},
            "objective.pairing.length_match: true given, but of rollout.group_size = 2",
        ),
        (
            {"objective.pairing.gold_solution": True, "reward.source": "random"},
            "objective.pairing.gold_solution: true given, which stands in where all samples are wrong, but "
            "reward.source=random does not say which are right",
        ),
    ],
)
def test_knobs_of_rounds_that_cannot_be_are_refused(knobs: dict[str, Any], line: str, tiny_run: MakeRun) -> None:
    with pytest.raises(ConfigError) as error:
        tiny_run("dpo", **{**QUIET, **knobs})
    assert any(found.startswith(line) for found in error.value.lines), error.value.lines
