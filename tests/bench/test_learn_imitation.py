"""Imitation: the completions that are learned from, the matched budget, and a loss that is plain maximum likelihood."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.axes.imitation import AcceptedSamples
from bench.casting import make_cast, make_learner
from bench.config import Run, TinyModel
from bench.generate import Completion, sample
from bench.instruments import Instruments
from bench.learn_imitation import Example, ImitationLearner, accepted_samples, worked_solutions
from bench.learner import Cast
from bench.loading import ConfigError
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.models import create_tiny
from bench.offline import pass_order, rounds
from bench.policy import Sequences, token_logps
from bench.rollout import Graded, Group, NothingToLearn, PromptStream, Sampler
from bench.train import execute
from tasks.parts.problem import Grade, Problem

MakeRun = Callable[..., Run]
# No warm start: only what is learned from is looked at.
COLD: dict[str, Any] = {"warm_start": None, "validation.every": 0, "validation.problems": 100, "validation.samples": 4}


def cast_of(run: Run) -> Cast:
    assert isinstance(run.model, TinyModel)
    return make_cast(run, create_tiny(run.model, run.task.alphabet, 0))


def learner_of(run: Run, cast: Cast) -> ImitationLearner:
    instruments = Instruments(PhaseClock(), MemoryMeter("cpu"))
    learner = make_learner(run, cast, Sampler(run, run.task, sample, instruments), instruments)
    assert isinstance(learner, ImitationLearner)
    return learner


def problems_of(run: Run) -> list[Problem]:
    return [problem for own in rounds(run) for problem in own]


def group(prompt: int, members: Sequence[tuple[tuple[int, ...], bool | None]]) -> Group:
    """A group of completions, each given by its tokens and its verdict."""

    def graded(tokens: tuple[int, ...], correct: bool | None) -> Graded:
        grade = Grade(correct=correct, answer_key=None, method="end", parsed=True, truncated=False)
        reward = float("nan") if correct is None else float(correct)
        return Graded(Completion(tokens, True, tuple(-1.0 for _ in tokens)), "", grade, reward, correct)

    problem = Problem(id=f"p/{prompt}", prompt=str(prompt), gold="")
    return Group(problem, (prompt,), tuple(graded(*member) for member in members))


def lines(directory: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / name).read_text().splitlines()]


def test_sft_learns_from_the_solutions_of_an_online_runs_prompts(tiny_run: MakeRun) -> None:
    run = tiny_run("sft", **COLD)
    cast = cast_of(run)
    material = worked_solutions(run, cast.policy, problems_of(run))
    stream = PromptStream(tiny_run("grpo", **COLD).task, run.seed, run.rollout.prompts)
    problems = [problem for index in range(2) for problem in stream.round(index)]
    encode = cast.policy.encode_completion
    expected = {Example(tuple(cast.policy.encode_prompt(p.prompt)), tuple(encode(p.solution or ""))) for p in problems}
    assert set(material.examples) == expected
    assert len(material.examples) == len(expected) == material.found["imitation/num_completions"]
    assert material.found["imitation/prompts_used"] == 1
    assert all(example.token_ids[-1] in cast.policy.end_ids for example in material.examples)


def test_a_solution_longer_than_the_budget_is_left_out_and_counted(tiny_run: MakeRun) -> None:
    """One-digit sums take one or two digits and the end token: a budget of 2 holds those below 10 alone."""
    run = tiny_run("sft", **COLD, **{"rollout.max_completion_tokens": 2})
    cast = cast_of(run)
    problems = problems_of(run)
    found = worked_solutions(run, cast.policy, problems)
    golds = [int(p.gold) for p in problems]
    assert 0 < found.found["imitation/too_long"] < 1
    assert {len(example.token_ids) for example in found.examples} == {2}
    solutions = {int(cast.policy.decode(example.token_ids)) for example in found.examples}
    assert solutions == {gold for gold in golds if gold < 10}
    with pytest.raises(NothingToLearn, match=r"rollout.max_completion_tokens = 1, .* the shortest takes 2"):
        worked_solutions(tiny_run("sft", **COLD, **{"rollout.max_completion_tokens": 1}), cast.policy, problems)


def test_rft_learns_from_each_distinct_correct_sample_once(tiny_run: MakeRun) -> None:
    """Wrong, unscorable and repeated ones are left out, also when the prompt comes again in a later round."""
    run = tiny_run("rft", **COLD)
    first = group(7, [((1, 2), True), ((3,), False), ((1, 2), True), ((4,), None), ((5,), True)])
    again = group(7, [((5,), True), ((6,), True)])
    none = group(8, [((1, 2), False), ((3,), None)])
    material = accepted_samples(run, AcceptedSamples(), [first, none, again])
    assert material.examples == [Example((7,), text) for text in ((1, 2), (5,), (6,))]
    assert material.found["imitation/num_completions"] == 3
    assert material.found["imitation/prompts_used"] == 0.5
    assert material.found["completions/generated"] == 9
    assert material.found["tokens/generated"] == 12
    assert material.found["reward/accuracy"] == pytest.approx(5 / 7)
    most = accepted_samples(run, AcceptedSamples(max_per_prompt=2), [first, none, again])
    assert most.examples == material.examples[:2], "the bound is on the prompt, not on each of its groups"
    with pytest.raises(NothingToLearn, match=r"^the starting policy has no correct sample in 1 prompts x 8 "):
        accepted_samples(run, AcceptedSamples(), [none])


def test_the_step_is_maximum_likelihood_whatever_the_microbatches(tiny_run: MakeRun) -> None:
    """The loss is the mean over completions of -logp per token, and its gradient that of one whole batch."""
    gradients: list[float] = []
    for size in (3, 64):
        run = tiny_run("sft", **COLD, **{"optimizer.microbatch_sequences": size, "optimizer.max_grad_norm": 1e-9})
        cast = cast_of(run)
        learner = learner_of(run, cast)
        learner.prepare()
        order = pass_order(run.seed, "imitation order", len(learner.examples), learner.examples_per_update, 0)
        examples = [learner.examples[i] for i in order]
        sequences = Sequences.of([e.prompt_ids for e in examples], [e.token_ids for e in examples], cast.policy.pad_id)
        with torch.no_grad():
            logp = token_logps(cast.policy.network, sequences, 1.0) * sequences.mask
        weights = sequences.mask.sum(dim=1)
        (record,) = learner.advance()
        assert record["loss"] == pytest.approx(float(-(logp.sum(dim=1) / weights).mean()), rel=1e-5)
        assert record["imitation/logp"] == pytest.approx(float(logp.sum() / weights.sum()), rel=1e-5)
        assert record["tokens/trained"] == int(weights.sum())
        gradients.append(record["grad_norm"])
    assert gradients[0] == pytest.approx(gradients[1], rel=1e-4)


def test_log_probabilities_are_at_temperature_1(tiny_run: MakeRun) -> None:
    records: list[dict[str, Any]] = []
    for temperature in (1.0, 0.5):
        learner = learner_of(run := tiny_run("sft", **COLD, **{"rollout.temperature": temperature}), cast_of(run))
        learner.prepare()
        records.append(next(learner.advance()))
    assert records[0]["loss"] == records[1]["loss"]


def test_passes_are_permutations_and_the_budget_is_an_online_runs(tiny_run: MakeRun) -> None:
    """8 prompts x 8 completions in 2 updates: 32 an update, or all there are where there are fewer."""
    run = tiny_run("sft", **COLD)
    learner = learner_of(run, cast_of(run))
    learner.examples = [Example((1,), (i,)) for i in range(100)]
    assert learner.examples_per_update == 32
    learner.examples = learner.examples[:20]
    assert learner.examples_per_update == 20
    order = [i for update in range(5) for i in pass_order(0, "imitation order", 10, 4, update)]
    assert sorted(order[:10]) == sorted(order[10:]) == list(range(10))
    assert order[:10] != order[10:]


@pytest.mark.parametrize("algorithm", ["sft", "rft"])
def test_a_run_of_imitation_is_charged_for_what_it_sampled(algorithm: str, tiny_run: MakeRun, tmp_path: Path) -> None:
    """RFT samples as many completions as an online run, once and before the first update; SFT samples none."""
    assert execute(tiny_run(algorithm), tmp_path / "run").state == "finished"
    records, timings = lines(tmp_path / "run"), lines(tmp_path / "run", "timings.jsonl")
    sampled = {"sft": 0, "rft": 2 * 8 * 8}[algorithm]
    assert records[1]["completions/generated"] == timings[0]["completions"] == sampled
    assert records[1]["tokens/generated"] == timings[0]["tokens"]["generated"]
    assert all(line["completions"] == 0 for line in timings[1:])
    assert all("completions/generated" not in record for record in records[2:])
    trained = [line["tokens"]["trained"] for line in timings[1:]]
    assert [record["tokens/trained"] for record in records[1:]] == [sum(trained[: i + 1]) for i in range(4)]
    logps = [record["imitation/logp"] for record in records[1:]]
    assert logps[-1] > logps[0], "what is imitated becomes likelier"
    size = records[1]["imitation/num_completions"]
    assert records[-1]["imitation/passes"] == pytest.approx(4 * min(32, size) / size)


def test_rft_without_a_correct_sample_ends_with_a_sentence(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.chain_sum import ChainSum

    run = tiny_run("rft")
    execute(tiny_run("sft"), tmp_path / "warm")
    wrong = Grade(correct=False, answer_key=None, method="none", parsed=False, truncated=False)
    monkeypatch.setattr(ChainSum, "grade", lambda *arguments, **knobs: wrong)
    status = execute(run, tmp_path / "run")
    assert status.state == "failed"
    assert status.error is not None
    assert status.error.startswith("the starting policy has no correct sample in 16 prompts x 8 completions (")


def test_sft_is_refused_before_a_model_loads_where_no_problem_has_a_solution(
    tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = cast_of(run := tiny_run("sft", **COLD))
    monkeypatch.setattr("tasks.chain_sum._worked_solution", lambda terms: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    with pytest.raises(ConfigError) as error:
        tiny_run("sft")
    assert error.value.lines == [
        "objective.source.kind: gold_solutions given, but chain_sum has no worked solutions; give another task, or "
        "objective.source.kind=accepted_samples, which learns from the model's own correct samples"
    ]
    assert tiny_run("rft").algorithm == "rft"
    with pytest.raises(NothingToLearn, match=r"^none of the run's 16 prompts of chain_sum has a worked solution: "):
        worked_solutions(run, cold.policy, problems_of(run))  # where only the hub knew
