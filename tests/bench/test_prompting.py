"""Prompts with worked examples: no problem shows its own answer, and another question ends a completion."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.config import Prompt, Run, TinyModel
from bench.generate import Completion
from bench.models import LanguageModel, create_tiny
from bench.problems import load_problems
from bench.prompting import ended, prompt_texts, solved_problems, stop_of
from bench.rollout import Sampler
from tasks.chain_sum import ChainSum
from tasks.gsm8k import Gsm8k

FEW = Prompt(style="few_shot", shots=2)


def gsm8k_of(folder: Path, train: list[tuple[str, int]], test: list[tuple[str, int]]) -> Gsm8k:
    for name, rows in (("train", train), ("test", test)):
        lines = [json.dumps({"question": question, "answer": f"It is so.\n#### {gold}"}) for question, gold in rows]
        (folder / f"gsm8k_{name}.jsonl").write_text("\n".join(lines))
    return Gsm8k(path=str(folder))


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return create_tiny(TinyModel(), "0123456789+=\nQuestion: Answer", seed=0)


def test_no_prompt_shows_the_question_that_it_asks(tmp_path: Path) -> None:
    """Not under the problem's own id, nor as a training row that is the test question word for word."""
    train = [(f"How many are {i} and {i}?", 2 * i) for i in range(40)]
    task = gsm8k_of(tmp_path, train, [("how  many are 1 and 1 ?", 2), ("How many are 90 and 1?", 91)])
    copied, new = prompt_texts(task, load_problems(task, "test", 0, 2), FEW)
    assert copied.count("1 and 1") == 1
    assert [copied.count(f"How many are {i} and {i}?") for i in (0, 1, 2)] == [1, 0, 1]
    assert [new.count(f"How many are {i} and {i}?") for i in (0, 1, 2)] == [1, 1, 0]
    own = prompt_texts(task, load_problems(task, "train", 0, 3), FEW)
    for i, text in enumerate(own):
        assert text.count(f"How many are {i} and {i}?") == 1
        assert text.count("Question:") == 3
        assert text.endswith(f"Question: How many are {i} and {i}?\nAnswer:")


def test_examples_are_different_questions_and_too_few_is_an_error(tmp_path: Path) -> None:
    task = gsm8k_of(tmp_path, [("How many?", 1)] * 20 + [("How much?", 2)] * 20, [("Who?", 3)])
    assert [problem.gold for problem in solved_problems(task, 2)] == ["1", "2"]
    with pytest.raises(ValueError, match=r"prompt.shots: 2 given, but gsm8k has 2 solved training problems"):
        prompt_texts(task, load_problems(task, "test", 0, 1), FEW)


def completion_of(model: LanguageModel, text: str) -> Completion:
    ids = model.encode_completion(text)[:-1]
    return Completion(tuple(ids), False, tuple(float(-i) for i in range(len(ids))))


def test_a_completion_ends_where_it_asks_another_question(model: LanguageModel) -> None:
    whole = completion_of(model, "12+3=15\n\nQuestion: 1+1=\nAnswer: 2")
    cut, text = ended(model, whole, stop_of(FEW))
    assert text == "12+3=15"
    assert model.decode(cut.token_ids) == "12+3=15\n\nQuestion:"
    assert cut.terminated
    assert cut.logps == whole.logps[: len(cut.token_ids)]
    other = completion_of(model, "12+3=15\nQuestion")
    assert ended(model, other, stop_of(FEW)) == (other, "12+3=15\nQuestion")
    assert ended(model, whole, stop_of(Prompt())) == (whole, "12+3=15\n\nQuestion: 1+1=\nAnswer: 2")


def test_training_and_evaluation_grade_what_stands_before_the_stop(
    tiny_run: Callable[..., Run], model: LanguageModel
) -> None:
    """A right answer that is followed by another question is right, and its tokens end with the stop."""
    from bench.evaluation.driver import Plan, evaluate
    from bench.instruments import Instruments
    from bench.memory import MemoryMeter
    from bench.meter import PhaseClock

    task = ChainSum(num_terms=2, num_digits=1)
    problems = load_problems(task, "test", 0, 2)

    def says_more(model: LanguageModel, prompts: object, keys: list[list[int]], **options: object) -> object:
        golds = {p.gold for p in problems}
        return [[completion_of(model, f"{gold}\n\nQuestion: 1+1=") for gold in golds] for _ in keys]

    run = tiny_run("grpo", **{"prompt.style": "few_shot", "prompt.shots": 1, "model.max_positions": 64})
    plan = Plan("test", 2, len({p.gold for p in problems}), 1.0, 40, 0, "test", prompt=run.prompt)
    rows = evaluate(model, task, plan, says_more).completions  # pyright: ignore[reportArgumentType]
    assert [row["truncated"] for row in rows] == [False] * len(rows)
    assert {row["completion"] for row in rows} == {p.gold for p in problems}
    instruments = Instruments(PhaseClock(lambda: 0.0), MemoryMeter("cpu"))
    groups = Sampler(run, task, says_more, instruments).groups(model, problems, 0)  # pyright: ignore[reportArgumentType]
    for group in groups:
        assert sum(group.correct) == 1
        assert all(model.decode(m.completion.token_ids).endswith("\n\nQuestion:") for m in group.members)
