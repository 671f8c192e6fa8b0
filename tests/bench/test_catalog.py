"""The catalog: a file is found because it is there, under its own name, and a misspelt name finds the nearest one."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import algorithms
import tasks
from bench import catalog
from bench.loading import build_run

_TASK = '''"""Echo: repeat one digit."""

from typing import ClassVar, Literal

from tasks.parts.problem import Grade, Problem, ProceduralTask, Split


class Echo(ProceduralTask, frozen=True):
    version: ClassVar[int] = 7
    alphabet: ClassVar[str] = "0123456789"
    name: Literal["echo"] = "echo"
    times: int = 1

    def num_problems(self, split: Split) -> int | None:
        return None

    def generate(self, split: Split, index: int) -> Problem:
        return Problem(id=f"echo/{split}/{index}", prompt=str(index % 10), gold=str(index % 10))

    def grade(self, problem: Problem, completion: str, *, truncated: bool = False) -> Grade:
        right = completion == problem.gold
        return Grade(correct=right, answer_key=completion, method="all", parsed=True, truncated=truncated)

    def format_score(self, problem: Problem, completion: str) -> float:
        return 1.0
'''


def test_every_algorithm_and_task_is_listed_with_its_title() -> None:
    assert {"ppo", "grpo", "dr_grpo", "dapo", "dpo"} <= set(catalog.names("algorithms"))
    assert {"chain_sum", "gsm8k"} <= set(catalog.names("tasks"))
    for kind in ("algorithms", "tasks", "reports"):
        assert all(entry.title for entry in catalog.entries(kind)), kind


@pytest.mark.parametrize("name", catalog.names("algorithms"))
def test_every_preset_loads_and_cites_each_knob(name: str) -> None:
    preset = catalog.load_preset(name)
    assert preset.name == name
    assert preset.title == next(entry.title for entry in catalog.entries("algorithms") if entry.name == name)
    assert all(preset.source(axis) for axis in vars(preset.objective) if axis != "kind")


def test_a_knob_without_its_own_source_has_that_of_its_axis() -> None:
    preset = catalog.load_preset("dapo")
    assert preset.source("surrogate.high") == preset.sources["surrogate.high"]
    assert preset.source("surrogate.kind") == preset.sources["surrogate"]
    assert preset.source("kind") == ""


@pytest.mark.parametrize("name", catalog.names("tasks"))
def test_a_task_is_named_after_its_file(name: str) -> None:
    assert catalog.load_task_class(name).model_fields["name"].default == name


@pytest.fixture
def new_tasks(tmp_path: Path) -> Iterator[Path]:
    """A second folder of the package `tasks`."""
    tasks.__path__.append(str(tmp_path))
    yield tmp_path
    tasks.__path__.remove(str(tmp_path))
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(f"tasks.{path.stem}", None)


def test_a_new_task_is_one_new_file(new_tasks: Path) -> None:
    (new_tasks / "echo.py").write_text(_TASK)
    (new_tasks / "helper.py").write_text('"""Not a task."""\n\n\nclass Helper:\n    pass\n')
    assert "echo" in catalog.names("tasks")
    assert "helper" not in catalog.names("tasks")
    run = build_run(
        {
            "task": {"name": "echo", "times": 2},
            "rollout": {"prompts": 4, "group_size": 2, "max_completion_tokens": 1},
            "optimizer": {"lr": 1e-3, "microbatch_sequences": 8},
            "budget": {"updates": 1},
        }
    )
    assert run.dump()["task"] == {"name": "echo", "times": 2}


def test_a_task_file_defines_exactly_one_task(new_tasks: Path) -> None:
    (new_tasks / "twins.py").write_text(f"{_TASK}\n\nclass Second(Echo, frozen=True):\n    pass\n")
    with pytest.raises(TypeError, match=r"^tasks/twins.py defines 2 tasks, a task file defines exactly one$"):
        catalog.load_task_class("twins")


def test_a_misspelt_name_finds_the_nearest() -> None:
    with pytest.raises(catalog.UnknownName) as error:
        catalog.load_preset("gropo")
    names = ", ".join(catalog.names("algorithms"))
    assert str(error.value) == f"there is no algorithm of that name; did you mean grpo? there are {names}"
    with pytest.raises(catalog.UnknownName, match=r"^there is no task of that name; did you mean chain_sum"):
        catalog.load_task_class("chain-sum")
    with pytest.raises(catalog.UnknownName, match=r"^there is no algorithm of that name; there are "):
        catalog.load_preset("quicksort")
    # A folder or a dotted path is no algorithm, whatever could be imported under that name.
    for name in ("axes", "axes.knobs", "", "__init__"):
        with pytest.raises(catalog.UnknownName):
            catalog.load_preset(name)
    assert (Path(algorithms.__path__[0]) / "axes").is_dir()


@pytest.mark.parametrize(
    ("word", "found"),
    [("learning_rate", "lr"), ("learning-rat", "lr"), ("epoch", "epochs"), ("EPOCHS", "epochs"), ("zzz", None)],
)
def test_nearest(word: str, found: str | None) -> None:
    assert catalog.nearest(word, ["epochs", "lr", "epsilon"]) == found


def test_listing_imports_no_algorithm(root: Path) -> None:
    listing = "catalog.entries('algorithms'), catalog.entries('tasks')"
    code = f"import sys; from bench import catalog; {listing}; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "pydantic", "algorithms.grpo", "tasks.chain_sum"} & set(modules)
