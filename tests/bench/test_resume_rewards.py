"""What a resume knows of the user's reward functions: that they have worked, and what they failed on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import logs, resume
from bench.casting import make_cast, make_learner
from bench.config import Run, TinyModel
from bench.generate import Completion
from bench.instruments import Instruments
from bench.learner import Learner
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.models import create_tiny
from bench.rewards import Rewarder, RewardMistake, Sample
from bench.rollout import Sampler
from tasks.parts.problem import Grade, Problem

MakeRun = Callable[..., Run]
MODULE = """
def f(completions, gold):
    if any(text == "7" for text in completions): raise ValueError("no sevens")
    return [float(right == text) for text, right in zip(completions, gold)]
"""
LOG = "reward_failures.jsonl"
KNOBS: dict[str, Any] = {"reward.source": "functions", "reward.functions": [{"function": "kept_rewards:f"}]}


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept_rewards.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


def learner_of(run: Run, directory: Path) -> Learner:
    assert isinstance(run.model, TinyModel)
    instruments = Instruments(PhaseClock(), MemoryMeter("cpu"))
    cast = make_cast(run, create_tiny(run.model, run.alphabet, 0))
    sampler = Sampler(run, run.task, half_right, instruments, directory / LOG)
    return make_learner(run, cast, sampler, instruments, directory)


def half_right(model: Any, prompts: Any, keys: Any, **_: Any) -> list[list[Completion]]:
    found: list[list[Completion]] = []
    for prompt, own in zip(prompts, keys, strict=True):
        text = model.decode(prompt)
        answers = [str(sum(map(int, text.rstrip("=").split("+")))), text[0]]
        ids = [tuple(model.encode_completion(answers[i % 2])) for i in range(len(own))]
        found.append([Completion(one, True, (-1.0,) * len(one)) for one in ids])
    return found


def rewards(rewarder: Rewarder, *texts: str) -> list[float]:
    grade = Grade(correct=True, answer_key=None, method="end", parsed=True, truncated=False)
    problem = Problem(id="p/0", prompt="1+1=", gold="2")
    return [
        worth.reward
        for worth in rewarder.worths(
            [
                Sample(problem=problem, text=text, grade=grade, round=0, position=0, member=i)
                for i, text in enumerate(texts)
            ]
        )
    ]


def test_a_function_that_worked_before_a_resume_costs_its_completions_alone_after_it(
    tiny_run: MakeRun, tmp_path: Path
) -> None:
    run = tiny_run("grpo", **KNOBS, **{"checkpoint.every": 2})
    first, second = learner_of(run, tmp_path / "run"), learner_of(run, tmp_path / "run")
    with pytest.raises(RewardMistake, match="failed on each of 2 completions"):
        rewards(Rewarder(run), "7", "7")
    assert rewards(first.sampler.rewarder, "2", "3") == [1.0, 0.0]
    undisturbed = rewards(first.sampler.rewarder, "7", "7")
    first.cast.progress.update = 2
    resume.save(resume.Place(run, tmp_path / "run", first, first.instruments))  # type: ignore[attr-defined]
    place = resume.Place(run, tmp_path / "run", second, second.instruments)  # type: ignore[attr-defined]
    folder = resume.newest(place)
    assert folder is not None
    resume.take_up(place, folder)
    assert str(rewards(second.sampler.rewarder, "7", "7")) == str(undisturbed) == "[nan, nan]"


@pytest.mark.parametrize("algorithm", ["dpo", "rft"])
def test_samples_that_are_not_drawn_again_leave_what_they_left(
    algorithm: str, tiny_run: MakeRun, tmp_path: Path
) -> None:
    """Killed before the first checkpoint, the log is cut to nothing, and once the kept samples are used it is whole;
    where a checkpoint came later, it counts the lines already."""
    pairing = {"objective.pairing.require_termination": False} if algorithm == "dpo" else {}
    run = tiny_run(algorithm, **KNOBS, **pairing)
    first = learner_of(run, tmp_path / "run")
    first.prepare()
    next(first.advance())
    whole = (tmp_path / "run" / LOG).read_bytes()
    assert whole.count(b"no sevens") > 0
    logs.cut_back(tmp_path / "run", {})
    again = learner_of(run, tmp_path / "run")
    again.prepare()
    assert again.sampler.rewarder.called == {"kept_rewards:f"}
    next(again.advance())
    next(again.advance())
    assert (tmp_path / "run" / LOG).read_bytes() == whole
    later = learner_of(run, tmp_path / "run")
    later.prepare()
    for name, value in vars(first.cast.progress).items():
        setattr(later.cast.progress, name, value)
    next(later.advance())
    assert (tmp_path / "run" / LOG).read_bytes() == whole
