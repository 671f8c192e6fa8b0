"""Controls: with every verdict turned round, nothing that learns changes by a bit."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bench.casting import make_cast, make_learner
from bench.config import Run, TinyModel
from bench.generate import Completion
from bench.instruments import Instruments
from bench.learn_imitation import ImitationLearner
from bench.learn_pairs import PairLearner
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.models import LanguageModel, create_tiny
from bench.rollout import Sampler
from tasks.chain_sum import ChainSum
from tasks.parts.problem import Grade, Problem

MakeRun = Callable[..., Run]
SMALL: dict[str, Any] = {
    "warm_start": None, "validation.every": 0, "validation.problems": 100, "validation.samples": 4,
    "rollout.updates_per_rollout": 1,
}  # fmt: skip
OFFLINE = ("rft", "dpo")


def partly_right(
    model: LanguageModel, prompts: Sequence[Sequence[int]], keys: Sequence[Sequence[int]], **_: Any
) -> list[list[Completion]]:
    """An engine that answers by its key: right, wrong or without any form, each in about a third of the cases."""
    groups: list[list[Completion]] = []
    for prompt, own in zip(prompts, keys, strict=True):
        left, right = model.decode(prompt).rstrip("=").split("+")
        total = int(left) + int(right)
        texts = [(str(total), str(total + 1 + key % 7), "=")[key % 3] for key in own]
        tokens = [tuple(model.encode_completion(text)) for text in texts]
        groups.append([Completion(ids, True, tuple(-1.0 for _ in ids)) for ids in tokens])
    return groups


def learnt(run: Run) -> Any:
    """What an algorithm makes of its first completions: pairs, imitated tokens, or the weights after one rollout."""
    assert isinstance(run.model, TinyModel)
    instruments = Instruments(PhaseClock(), MemoryMeter("cpu"))
    cast = make_cast(run, create_tiny(run.model, ChainSum(num_terms=2, num_digits=1).alphabet, 0))
    learner = make_learner(run, cast, Sampler(run, run.task, partly_right, instruments), instruments)
    learner.prepare()
    if isinstance(learner, PairLearner):
        return [(pair.prompt_ids, pair.chosen, pair.rejected) for pair in learner.pairs]
    if isinstance(learner, ImitationLearner):
        return learner.examples
    (record,) = learner.advance()
    weights = [parameter.tolist() for parameter in learner.cast.policy.network.parameters()]
    return weights, {name: record[name] for name in record if name.startswith(("groups/", "tokens/"))}


CONTROLS: dict[str, dict[str, Any]] = {
    "random": {"reward.source": "random"},
    "format_only": {"reward.source": "format_only", "reward.format": 1.0},
    "verifier": {},
}


@pytest.mark.parametrize("source", CONTROLS)
@pytest.mark.parametrize("algorithm", ["dapo", "rft", "online_rft", "dpo"])
def test_selection_and_acceptance_do_not_leak_the_verdict(
    algorithm: str, source: str, tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every verdict turned round, all that is selected, accepted, paired and learnt is the same to the bit; with
    the verifier's own reward it is not."""
    knobs = {**SMALL, **CONTROLS[source]} | ({} if algorithm in OFFLINE else {"rollout.old_logp": "sampler"})
    if algorithm in ("rft", "online_rft"):
        knobs.pop("reward.format", None)
    run = tiny_run(algorithm, **knobs)
    before = learnt(run)
    original = ChainSum.grade_all

    def turned_round(self: ChainSum, items: Sequence[tuple[Problem, str, bool]]) -> list[Grade]:
        return [replace(grade, correct=not grade.correct) for grade in original(self, items)]

    monkeypatch.setattr(ChainSum, "grade_all", turned_round)
    assert before
    assert (learnt(run) == before) == (source != "verifier")
