"""Mutations: the tests of the objectives catch a wrong sign, bound, denominator, mask or detach in every axis."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import pytest
import yaml

NEEDED = ("algorithms", "bench", "tests/algorithms", "tests/parity", "pyproject.toml", "tests/conftest.py")
SMALL = ("tests/bench/test_schedule.py",)
WORKERS = 2
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
FAILED = 1
"""Pytest's exit status where a test failed; 2 to 5 are interruptions and mistakes of use."""


@dataclass(frozen=True)
class Mutation:
    """One wrong version of a line, and the tests that should notice."""

    file: str
    what: str
    old: str
    new: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {self.what}: {self.new.strip()}"


def mutations() -> list[Mutation]:
    listed = yaml.safe_load(Path(__file__).with_name("mutations.yaml").read_text(encoding="utf-8"))
    return [
        Mutation(file, entry["what"], entry["old"], entry["new"], tuple(entry.get("tests", section["tests"])))
        for file, section in listed.items()
        for entry in section["mutations"]
    ]


def test_every_mutation_still_applies(root: Path) -> None:
    """The old text stands exactly once, the new one is another, and the tests named are there."""
    listed = mutations()
    texts = {file: (root / file).read_text(encoding="utf-8") for file in {each.file for each in listed}}
    assert [str(each) for each in listed if texts[each.file].count(each.old) != 1] == []
    assert [str(each) for each in listed if each.old == each.new] == []
    assert [name for name in {name for each in listed for name in each.tests} if not (root / name).is_file()] == []


def test_every_axis_is_mutated(root: Path) -> None:
    """Files that only declare, compose names or word messages have nothing to get wrong in numbers."""
    words = {"__init__", "advantage", "fitting", "knobs", "needs", "objective"}
    axes = {
        f"algorithms/axes/{path.name}" for path in (root / "algorithms/axes").glob("*.py") if path.stem not in words
    }
    assert {each.file for each in mutations()} == axes | {"bench/optimize.py"}


class Copy:
    """A copy of the code and its tests that may be spoilt, and a pytest that runs in it."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder, self.written = folder, 0
        for name in (*NEEDED, *SMALL):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (root / name).is_dir():
                shutil.copytree(root / name, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(root / name, target)
        self.log = (folder / "log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("forked_pytest.py")],
            cwd=folder,
            env=os.environ | ENVIRONMENT | {"PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def status(self, tests: tuple[str, ...]) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(*tests, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def tested(self, mutation: Mutation) -> int:
        """Exit status of the mutation's tests with the mutation in place."""
        path = self.folder / mutation.file
        text = path.read_text(encoding="utf-8")
        self.write(path, text.replace(mutation.old, mutation.new))
        try:
            return self.status(mutation.tests)
        finally:
            self.write(path, text)

    def write(self, path: Path, text: str) -> None:
        """Bytecode is kept by size and second: each version must look newer than the one before it."""
        path.write_text(text, encoding="utf-8")
        self.written += 1
        os.utime(path, (10 * self.written, 10 * self.written))

    def close(self) -> None:
        self.process.communicate()
        self.log.close()


@pytest.fixture
def copies(root: Path, tmp_path: Path) -> Iterator["Queue[Copy]"]:
    """Copies that are free, each used by one thread at a time."""
    free: Queue[Copy] = Queue()
    made = [Copy(root, tmp_path / str(number)) for number in range(WORKERS)]
    for copy in made:
        free.put(copy)
    yield free
    for copy in made:
        copy.close()


@pytest.mark.slow
def test_every_mutation_is_caught(copies: "Queue[Copy]") -> None:
    """First the copies as they are: all tests pass there, so that a failure means a mutation was seen."""
    wanted = mutations()

    def caught(mutation: Mutation) -> int:
        copy = copies.get()
        try:
            return copy.tested(mutation)
        finally:
            copies.put(copy)

    copy = copies.get()
    assert copy.status(tuple(sorted({name for each in wanted for name in each.tests}))) == 0
    copies.put(copy)
    with ThreadPoolExecutor(WORKERS) as pool:
        statuses = list(pool.map(caught, wanted))
    survivors = [f"{status} {each}" for each, status in zip(wanted, statuses, strict=True) if status != FAILED]
    print(f"{len(wanted) - len(survivors)} of {len(wanted)} mutations caught")
    assert survivors == []
