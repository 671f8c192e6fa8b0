"""A user's reward functions: what they may take and return, and that one bad completion costs no other its reward."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from bench import store
from bench.cli import app
from bench.config import Run
from bench.loading import ConfigError
from bench.reward_functions import checked, describe, reward_fingerprint
from bench.rewards import Rewarder, RewardMistake, Sample, Worth, columns_of
from bench.train import execute
from tasks.chain_sum import ChainSum
from tasks.parts.problem import Grade, Problem, Split

MakeRun = Callable[..., Run]
SLOW = pytest.mark.slow
MODULE = """
import asyncio, os, time
calls = []

def length(completions): return [len(text) for text in completions]
def level(completions, gold, level, absent=1): return [hard * absent for hard in level]
def everything(completions, **columns): return [len(columns)] * len(completions)
def trl_like(prompts, completions, **rest): return tuple(text in "ab" for text in completions)
def picky(completions):
    if "b" in completions: raise ValueError("no b, please")
    return [1.0 for _ in completions]
def slow(completions):
    if "b" in completions: time.sleep(60)
    return [1.0 for _ in completions]
def steady(completions):
    time.sleep(0.06 * len(completions))
    return [1.0 for _ in completions]
def dies(completions):
    if "b" in completions: os._exit(3)
    return [1.0 for _ in completions]
def exits(completions):
    if "b" in completions: raise SystemExit(0)
    return [1.0 for _ in completions]
def never(completions): return [{}[text] for text in completions]
def unsure(completions): return [None, float("nan"), float("inf"), 10 ** 400, True, 2][: len(completions)]
def short(completions): return [1.0]
def later(completions): return [1.0] if "b" in completions else [1.0 for _ in completions]
def empties(completions):
    completions.clear()
    return completions
def mapping(completions): return dict.fromkeys(completions, 1.0)
def coroutine(completions): return asyncio.sleep(0)
async def asynchronous(completions): return [1.0]
def nothing(): return []
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the user's module, in which the run is started."""
    (tmp_path / "own_rewards.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def knobs(name: str, **more: Any) -> dict[str, Any]:
    return {"reward.source": "functions", "reward.functions": [{"function": f"own_rewards:{name}", **more}]}


def worths(run: Run, texts: str, log: Path | None = None, **columns: list[Any]) -> list[Worth]:
    return Rewarder(run, log).worths(samples_of(texts, **columns))


def samples_of(texts: str, **columns: list[Any]) -> list[Sample]:
    """A completion for each letter, each of a problem of its own."""
    grade = Grade(correct=True, answer_key=None, method="end", parsed=True, truncated=False)
    return [
        Sample(
            problem=Problem(
                id=f"p/{i}", prompt="1+1=", gold="2", columns={name: values[i] for name, values in columns.items()}
            ),
            text=text,
            grade=grade,
            round=0,
            position=i,
            member=0,
        )
        for i, text in enumerate(texts)
    ]


def refused(run: Run, texts: str) -> str:
    with pytest.raises(RewardMistake) as error:
        worths(run, texts)
    return str(error.value)


# What a function may return


@pytest.mark.parametrize(
    "value",
    [[1, 0.5], (True, np.float32(0.5)), np.array([1, 0.5]), torch.tensor([1, 0.5], requires_grad=True),
     [torch.tensor(1), torch.tensor(0.5)], np.array([1, 0.5], dtype=object)],
)  # fmt: skip
def test_ver_19_what_holds_a_number_for_each_completion_is_taken(value: Any) -> None:
    found = checked(value, 2)
    assert found.mistake is None
    assert found.values == (1, 0.5)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (1.0, "the single number 1.0"),
        (torch.tensor(1.0), "a Tensor that is a single number"),
        (np.float64(2), "the single number np.float64(2.0)"),
        (None, "None"),
        ("10", "a string '10'"),
        (b"10", "a bytes b'10'"),
        ({"a": 1, "b": 2}, "a dict"),
        ({1, 2}, "a set"),
        ((x for x in (1, 2)), "a generator"),
        ([1], "1 of them"),
        ([1, 2, 3], "3 of them"),
        (torch.ones(2, 1), "a Tensor of shape (2, 1)"),
        (torch.ones(3), "3 of them"),
        ([[1], [2]], "a list at position 0"),
        ([1, "0"], "a string '0' at position 1"),
        ([1, 1j], "the single number 1j at position 1"),
        ([1, torch.ones(1)], "a Tensor at position 1"),
    ],
)
def test_ver_19_anything_else_is_said_with_what_was_expected(value: Any, got: str) -> None:
    assert checked(value, 2).mistake == (
        "must return a list, tuple, array or tensor of 2 numbers or None, one for each completion; returned " + got
    )


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("short", "1 of them"),
        ("empties", "0 of them"),
        pytest.param("mapping", "a dict", marks=SLOW),
        pytest.param("coroutine", "a coroutine (an async function?)", marks=SLOW),
    ],
)
@pytest.mark.usefixtures("user")
def test_ver_19_a_wrong_shape_is_refused_at_the_first_call(name: str, got: str, tiny_run: MakeRun) -> None:
    text = refused(tiny_run("grpo", **knobs(name)), "abc")
    assert text.startswith(f"reward.functions.0: own_rewards:{name} must return a list, tuple, array or tensor of 3 ")
    assert text.endswith(f"returned {got}")


@pytest.mark.usefixtures("user")
def test_none_nan_and_infinity_are_unscorable_and_bools_are_numbers(tiny_run: MakeRun) -> None:
    found = worths(tiny_run("grpo", **knobs("unsure")), "abcdef")
    assert [worth.observed for worth in found] == [None] * 4 + [True] * 2
    assert [worth.reward for worth in found[4:]] == [1, 2]
    assert [worth.failures for worth in found] == [0] * 6, "they were asked and answered"


# What a function may take


@pytest.mark.usefixtures("user")
def test_cfg_11_a_column_of_the_data_reaches_the_function(tiny_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ChainSum.generate

    def with_columns(self: ChainSum, split: Split, index: int) -> Problem:
        return replace(original(self, split, index), columns={"level": 3})

    monkeypatch.setattr(ChainSum, "generate", with_columns)
    assert [w.reward for w in worths(tiny_run("grpo", **knobs("level")), "ab", level=[1, 2], gold=[7, 7])] == [1, 2]
    assert [w.reward for w in worths(tiny_run("grpo", **knobs("everything")), "ab", level=[1, 2])] == [5, 5]
    assert [w.reward for w in worths(tiny_run("grpo", **knobs("trl_like")), "ac")] == [1, 0]


def test_a_row_that_lacks_a_column_has_none() -> None:
    problems = [sample.problem for sample in samples_of("ab", level=[1, 2])]
    problems.append(Problem(id="x", prompt="3", gold="4", columns={"gold": "other", "subject": "sums"}))
    assert columns_of(problems) == {
        "prompts": ["1+1=", "1+1=", "3"],
        "prompt": ["1+1=", "1+1=", "3"],
        "problem_id": ["p/0", "p/1", "x"],
        "gold": ["2", "2", "4"],
        "level": [1, 2, None],
        "subject": [None, None, "sums"],
    }


@pytest.mark.usefixtures("user")
def test_cfg_11_a_column_that_is_not_there_is_refused_before_training(tiny_run: MakeRun) -> None:
    (Path("own_rewards.py")).write_text("def f(completions, gould, prompts): return []\n")
    with pytest.raises(ConfigError) as error:
        tiny_run("grpo", **knobs("f"))
    assert error.value.lines == [
        "reward.functions.0.function: own_rewards:f wants gould, prompts, but there is no gould: found prompts, "
        "prompt, problem_id, gold; is it gold?"
    ]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("own_rewards:lenght", "cannot be imported: ImportError: own_rewards has no function lenght; did you mean "
         "length?"),
        pytest.param("own_rewards:calls", "cannot be imported: ImportError: calls of own_rewards is a list, not a "
         "function", marks=SLOW),
        pytest.param("no.such.module:f", "cannot be imported: ModuleNotFoundError: No module named 'no'", marks=SLOW),
        pytest.param("broken:f", "cannot be imported: ZeroDivisionError: division by zero", marks=SLOW),
        ("own_rewards:asynchronous", "is an async function, which returns a coroutine; must be a plain function that "
         "returns the numbers"),
        pytest.param("own_rewards:nothing", "takes (); must take (completions, **columns)", marks=SLOW),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_called_is_a_mistake_of_the_configuration(
    name: str, says: str, user: Path, tiny_run: MakeRun
) -> None:
    (user / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ConfigError) as error:
        tiny_run("grpo", **{"reward.functions": [{"function": name}]})
    assert error.value.lines == [f"reward.functions.0.function: {name} {says}"]


def test_the_command_ends_with_2_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["task=chain_sum", "rollout.prompts=8", "rollout.group_size=4", "rollout.max_completion_tokens=20",
             "optimizer.lr=1e-4", "optimizer.microbatch_sequences=16", "budget.updates=8",
             "reward.functions=[{function: no_such:f}]"]  # fmt: skip
    result = CliRunner().invoke(app, ["run", *given])
    assert result.exit_code == 2
    assert "reward.functions.0.function: no_such:f cannot be imported" in result.stderr
    assert os.listdir(tmp_path) == []


# One bad completion


@pytest.mark.parametrize(
    ("name", "trouble"),
    [
        ("picky", "ValueError: no b, please"),
        ("slow", "no result within 0.5 s"),
        pytest.param("dies", "the worker ended with status 3", marks=SLOW),
        pytest.param("exits", "SystemExit: 0", marks=SLOW),
    ],
)
def test_ver_18_one_completion_fails_alone(
    name: str, trouble: str, user: Path, tiny_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tiny_run("grpo", **knobs(name, limit_seconds=0.5))
    started = time.monotonic()
    found = worths(run, "acbda", user / "log.jsonl")
    assert time.monotonic() - started < 10
    assert [worth.observed for worth in found] == [True, True, None, True, True]
    assert [worth.failures for worth in found] == [0, 0, 1, 0, 0]
    assert [json.loads(line) for line in (user / "log.jsonl").read_text().splitlines()] == [
        {"function": f"own_rewards:{name}", "problem_id": "p/2", "round": 0, "member": 0, "error": trouble}
    ]
    assert capsys.readouterr().err == (
        f"grpo seed 0: reward function own_rewards:{name} failed on 1 of a rollout's completions, which are "
        f"unscorable: {trouble} (of p/2)\n"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("user")
def test_a_limit_is_one_completions_and_not_the_batchs(tiny_run: MakeRun) -> None:
    """Twelve completions of 60 ms each keep a limit of 0.4 s; the second batch is not tried as a whole again."""
    rewarder = Rewarder(tiny_run("grpo", **knobs("steady", limit_seconds=0.4)))
    assert [worth.reward for worth in rewarder.worths(samples_of("a" * 12))] == [1.0] * 12
    assert rewarder.slow == {"own_rewards:steady"}


@pytest.mark.usefixtures("user")
def test_a_function_that_fails_on_everything_is_the_functions_fault(tiny_run: MakeRun) -> None:
    assert refused(tiny_run("grpo", **knobs("never")), "abc") == (
        "reward.functions.0: own_rewards:never failed on each of 3 completions: KeyError: 'a'"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("user")
def test_a_wrong_shape_that_comes_later_costs_its_completion_alone(tiny_run: MakeRun) -> None:
    rewarder = Rewarder(tiny_run("grpo", **knobs("later")))
    assert [worth.reward for worth in rewarder.worths(samples_of("ac"))] == [1.0, 1.0]
    assert [worth.reward for worth in rewarder.worths(samples_of("aba"))] == [1.0, 1.0, 1.0], "one is one of one"


@pytest.mark.usefixtures("user")
def test_functions_add_to_the_verdict_with_their_weights(tiny_run: MakeRun) -> None:
    functions = [
        {"function": "own_rewards:length", "weight": 0.5},
        {"function": "own_rewards:picky", "weight": -2.0},
    ]
    found = worths(tiny_run("grpo", **{"reward.functions": functions, "reward.correct": 3.0}), "abc")
    assert [worth.reward for worth in found if worth.observed] == [3 + 0.5 - 2] * 2
    assert (found[1].observed, found[1].failures) == (None, 1)


@pytest.mark.usefixtures("user")
def test_a_weighted_form_is_reward_and_no_verdict(tiny_run: MakeRun) -> None:
    """Of functions alone, the verdict is whether their weighted sum is above 0, whatever the form adds."""
    functions = [
        {"function": "own_rewards:trl_like", "weight": 2.0},
        {"function": "own_rewards:length", "weight": -1.0},
    ]
    run = tiny_run("dapo", **{"reward.source": "functions", "reward.functions": functions, "reward.format": 5.0})
    found = Rewarder(run).worths([replace(sample, text=text) for sample, text in
                                  zip(samples_of("xxxx"), ["a", "c", "12", "b"], strict=True)])  # fmt: skip
    forms = [run.task.format_score(samples_of("a")[0].problem, text) for text in ("a", "c", "12", "b")]
    assert max(forms) > 0
    own = [1, -1, -2, 1]
    assert [worth.reward for worth in found] == [value + 5 * form for value, form in zip(own, forms, strict=True)]
    assert [worth.observed for worth in found] == [True, False, False, True]


# Identity


def test_code_and_schema_are_part_of_what_a_run_is(user: Path) -> None:
    (user / "pack/inner").mkdir(parents=True)
    (user / "pack/__init__.py").write_text("raise RuntimeError('a fingerprint runs no code')\n")
    (user / "pack/inner/score.py").write_text("def f(completions): return [1] * len(completions)\n")
    (user / "schema.json").write_text("{}")
    names = ["pack.inner.score:f", "own_rewards:length", "no_such:f"]
    before = reward_fingerprint(names, str(user / "schema.json"))
    assert before["function_files"]["no_such:f"] is None
    assert len({*before["function_files"].values(), before["format_schema"]}) == 4
    assert reward_fingerprint(names) == {**before, "format_schema": None}
    (user / "pack/inner/score.py").write_text("def f(completions): return [2] * len(completions)\n")
    after = reward_fingerprint(names, str(user / "schema.json"))
    changed = [name for name in names if after["function_files"][name] != before["function_files"][name]]
    assert changed == names[:1]


@pytest.mark.slow
def test_changed_code_is_used_by_the_next_run_and_never_by_this_one(user: Path, tiny_run: MakeRun) -> None:
    rewarder = Rewarder(tiny_run("grpo", **knobs("dies")))
    assert [worth.reward for worth in rewarder.worths(samples_of("aab"))][:2] == [1.0, 1.0]
    (user / "own_rewards.py").write_text("def dies(completions): return [5.0 for _ in completions]\n")
    assert [worth.reward for worth in Rewarder(rewarder.run).worths(samples_of("aa"))] == [5.0, 5.0]
    samples = samples_of("b" * 8)  # each b ends a worker of the old code, until a new one is needed
    with pytest.raises(RewardMistake, match="its file has changed since it was first used"):
        rewarder.worths(samples)


@pytest.mark.slow
def test_describe_names_what_is_required_and_what_is_not(user: Path) -> None:
    wanted = describe("own_rewards:level")
    assert (wanted.required, wanted.optional, wanted.everything) == (("gold", "level"), ("absent",), False)


# Whole runs


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dapo", "dpo", "rft"])
def test_a_whole_run_on_functions(
    algorithm: str, user: Path, tiny_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    (user / "own_rewards.py").write_text(
        "def f(completions, gold):\n"
        "    if any(text.endswith('7') for text in completions): raise ValueError('no sevens')\n"
        "    return [float(right == text) for text, right in zip(completions, gold)]\n"
    )
    run = tiny_run(algorithm, **knobs("f"))
    assert execute(run, user / "run").state == "finished"
    first = next(record for record in store.read_run(user / "run").metrics if "reward/mean" in record)
    assert first["reward/failures"] == first["reward/num_unscorable"] > 0
    assert len([line for line in capsys.readouterr().err.splitlines() if "ValueError: no sevens" in line]) == 1
