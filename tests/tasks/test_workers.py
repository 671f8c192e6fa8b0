"""Workers: every call ends in time, whatever it does, from wherever it is made, and no process is left behind."""

import asyncio
import contextlib
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tasks.parts import workers
from tasks.parts.workers import Outcome, run_all

FUNCTIONS = """
import os, subprocess, sys, time

def answer(seconds, value):
    time.sleep(seconds)
    return value

def compute(seconds, value):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return value

def spin(value):
    while value < 0:
        value -= 1
    return value

def talk(value):
    print("x" * 100_000)
    sys.stdout.flush()
    os.write(1, b"x" * 100_000)
    os.write(2, b"x" * 100_000)
    return input() if value < 0 else value

def cross(value):
    class Odd(Exception):
        def __str__(self):
            raise RuntimeError
    raise Odd if value < 0 else ValueError("caf\\u00e9 \\ud800")

def parent(file):
    with open(file, "w") as out:
        print(subprocess.Popen(["sleep", "1000"]).pid, file=out)
    time.sleep(1000)

def replaced():
    os.execv("/bin/sleep", ["sleep", "1000"])
"""
GOOD = [Outcome(value=7)]


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of functions that a worker can import, as a user's rewards are."""
    (tmp_path / "functions_of_a_user.py").write_text(FUNCTIONS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "functions_of_a_user"


def busy_children() -> list[psutil.Process]:
    """Descendants that use the processor within the next moments, are dead and unreaped, or run something else."""
    children = psutil.Process().children(recursive=True)
    before = {child: sum(child.cpu_times()[:2]) for child in children}
    time.sleep(0.2)
    alive = [child for child in children if child.is_running()]
    return [
        child
        for child in alive
        if child.status() == psutil.STATUS_ZOMBIE or sum(child.cpu_times()[:2]) - before[child] > 0.05
    ]


def gone(processes: list[psutil.Process], seconds: float) -> bool:
    """Whether they end in time. One that nobody has reaped yet has ended too: in a container it may wait for ever."""
    deadline = time.monotonic() + seconds
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def orphans() -> Iterator[list[psutil.Process]]:
    """Processes that are ended with the test if they are still there."""
    processes: list[psutil.Process] = []
    yield processes
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_values_and_errors_come_in_order() -> None:
    roots = run_all("math:sqrt", [(4,), (-1,), (2.25,), ("a",)], limit_seconds=5)
    assert [outcome.value for outcome in roots] == [2.0, None, 1.5, None]
    assert roots[1] == Outcome(error="ValueError: math domain error")
    assert roots[3].error is not None
    assert roots[3].error.startswith("TypeError: ")
    assert run_all("math:sqrt", [], limit_seconds=5) == []


def test_hanging_calls_cost_their_own_limit_and_no_other_call(functions: str) -> None:
    """100 good and 20 hanging calls, 4 workers: 20 / 4 limits, all good ones right, and the pool serves on."""
    limit = 0.1
    arguments = [(0.0, index) if index % 6 else (1000.0, index) for index in range(120)]
    run_all(f"{functions}:answer", [(0, 0)] * 4, limit_seconds=30, workers=4)
    start = time.monotonic()
    outcomes = run_all(f"{functions}:answer", arguments, limit_seconds=limit, workers=4)
    assert time.monotonic() - start < limit * 20 / 4 + 3
    late = Outcome(error="no result within 0.1 s", timed_out=True)
    assert outcomes == [Outcome(value=index) if index % 6 else late for index in range(120)]
    assert run_all(f"{functions}:answer", [(0, 7)], limit_seconds=30) == GOOD
    assert busy_children() == []


def test_a_busy_call_is_killed_and_reaped(functions: str) -> None:
    """A loop in Python, and a power that never lets go of the interpreter."""
    before = set(psutil.Process().children(recursive=True))
    for function, argument in [(f"{functions}:spin", -1), ("builtins:eval", "9**9**9**9")]:
        start = time.monotonic()
        (outcome,) = run_all(function, [(argument,)], limit_seconds=0.2)
        assert outcome.timed_out
        assert 0.2 <= time.monotonic() - start < 20
    assert set(psutil.Process().children(recursive=True)) <= before
    assert busy_children() == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux binds a process to a core")
def test_a_call_that_waits_for_the_processor_is_given_its_time(functions: str) -> None:
    """Two other programs have the only core: .3 s of computing take .9 s; a call that hangs is ended nevertheless."""
    cores = os.sched_getaffinity(0)
    run, busy = f"{functions}:compute", [sys.executable, "-c", "while True: pass"]
    others: list[subprocess.Popen[bytes]] = []
    try:
        os.sched_setaffinity(0, {min(cores)})
        run_all(run, [(0.0, 0)], limit_seconds=30)
        others += [subprocess.Popen(busy) for _ in range(2)]
        start = time.monotonic()
        outcomes = run_all(run, [(0.3, 7), (1000.0, 0)], limit_seconds=0.5)
        seconds = time.monotonic() - start
    finally:
        os.sched_setaffinity(0, cores)
        for other in others:
            other.kill()
            other.wait()
    assert outcomes == [*GOOD, Outcome(error="no result within 0.5 s", timed_out=True)]
    assert seconds < 15


def test_its_own_neighbours_give_a_hanging_call_no_more_time(functions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four calls that hang for each core share the cores for one limit: they do not get that much each."""
    # Long against what starting takes, and no worker of another test is ended and counted.
    num_cores, run, limit = os.cpu_count() or 1, f"{functions}:compute", 3.0
    monkeypatch.setattr(workers, "_POOL", workers._Pool())
    size = min(16, 4 * num_cores)
    run_all(run, [(0.0, 0)] * size, limit_seconds=30, workers=size)
    before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    outcomes = run_all(run, [(1000.0, 0)] * size, limit_seconds=limit, workers=size)
    used = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before
    assert all(outcome.timed_out for outcome in outcomes)
    # Their start counts too.
    assert used < 2 * limit * num_cores + 0.1 * size


def test_what_a_call_has_started_ends_with_it(functions: str, tmp_path: Path, orphans: list[psutil.Process]) -> None:
    file = tmp_path / "pid"
    (outcome,) = run_all(f"{functions}:parent", [(str(file),)], limit_seconds=0.5)
    assert outcome.timed_out
    pid = int(file.read_text())
    orphans += [psutil.Process(pid)] if psutil.pid_exists(pid) else []
    assert gone(orphans, seconds=5)
    (outcome,) = run_all(f"{functions}:replaced", [()], limit_seconds=20)
    assert outcome.died


@pytest.mark.parametrize(
    ("function", "arguments", "error"),
    [
        ("os:_exit", (3,), "the worker ended with status 3"),
        ("os:abort", (), "the worker was killed by SIGABRT"),
        ("ctypes:string_at", (0,), "the worker was killed by SIGSEGV"),
        ("builtins:bytearray", (1 << 34,), "MemoryError: the worker's memory bound"),
    ],
)
def test_a_call_that_ends_its_process_is_told_apart(function: str, arguments: tuple[object], error: str) -> None:
    outcomes = run_all(function, [arguments] * 2, limit_seconds=20, workers=1, memory_bytes=1 << 30)
    assert outcomes == [Outcome(error=error, died=True)] * 2


def test_what_memory_a_call_has_left_is_not_counted_against_the_next() -> None:
    """140 of 256 MiB are kept by the module: the next call meets a fresh process."""
    hoard = "[globals().setdefault('kept', bytearray(140 << 20)), len(kept)][1]"
    outcomes = run_all("builtins:eval", [(hoard,)] * 2, limit_seconds=20, workers=1, memory_bytes=1 << 28)
    assert [outcome.value for outcome in outcomes] == [140 << 20] * 2


def test_a_large_parent_does_not_wear_its_workers_out() -> None:
    """A trainer holds gigabytes, and a process starts with its parent's peak in `getrusage`."""
    kept = bytearray(b"1") * (300 << 20)
    outcomes = run_all("os:getpid", [()] * 20, limit_seconds=20, workers=1, memory_bytes=1 << 29)
    assert len(kept) == 300 << 20
    assert len({outcome.value for outcome in outcomes}) == 1


def test_many_functions_in_turn_keep_their_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three functions of two workers each where four may live: none ends another's at every call."""
    monkeypatch.setattr(workers, "_POOL", workers._Pool())
    monkeypatch.setattr(workers, "_MAX_LIVE", 4)
    monkeypatch.syspath_prepend(str(tmp_path))
    for i in range(3):
        text = "import os, time\ndef pid():\n    time.sleep(0.05)\n    return os.getpid()\n"
        (tmp_path / f"function_{i}.py").write_text(text, encoding="utf-8")

    def turn() -> set[object]:
        found = [run_all(f"function_{i}:pid", [()] * 4, limit_seconds=30, workers=2) for i in range(3)]
        return {outcome.value for outcomes in found for outcome in outcomes}

    try:
        turn()
        second = turn()
        assert None not in second
        assert turn() <= second
    finally:
        workers._POOL.shut_down()


def test_a_function_may_print_and_read(functions: str, capfd: pytest.CaptureFixture[str]) -> None:
    silent, reading = run_all(f"{functions}:talk", [(7,), (-1,)], limit_seconds=20)
    assert [silent] == GOOD
    assert reading.error == "EOFError: EOF when reading a line"
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_passed_on_is_an_error(functions: str) -> None:
    assert (
        run_all("threading:Lock", [()], limit_seconds=20)[0].error == "TypeError: cannot pickle '_thread.lock' object"
    )
    big, surrogate, unpicklable = "bytes", "\ud800", (lambda: 0)
    outcomes = run_all("builtins:eval", [(f"{big}(70 << 20)",), (f"len('{surrogate}')",)], limit_seconds=20)
    assert [outcome.error and outcome.error.partition(":")[0] for outcome in outcomes] == [
        "ValueError",
        "UnicodeEncodeError",
    ]
    outcomes = run_all("builtins:len", [(unpicklable,), (surrogate * 9,), ("a" * 3_000_000,)], limit_seconds=20)
    assert [outcome.value for outcome in outcomes] == [None, 9, 3_000_000]
    assert outcomes[0].error is not None
    odd, text = run_all(f"{functions}:cross", [(-1,), (1,)], limit_seconds=20)
    assert odd.error == "Odd: (its text cannot be made)"
    assert text.error == "ValueError: café \\ud800"
    assert run_all("sys:exit", [(0,)], limit_seconds=20)[0].error == "SystemExit: 0"


def test_a_function_that_cannot_be_imported_is_refused_by_name() -> None:
    for function in ("no_such_module:f", "math:no_such_function", "no_such_module"):
        with pytest.raises(ImportError, match=f"^{function} cannot be loaded in a worker process: [A-Z]"):
            run_all(function, [()], limit_seconds=20)
    with pytest.raises(ValueError, match="must be positive"):
        run_all("math:sqrt", [(4,)], limit_seconds=0)
    with pytest.raises(ValueError, match="must be positive"):
        run_all("math:sqrt", [(4,)], limit_seconds=float("nan"))


def test_starting_is_not_on_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import time\ntime.sleep(0.2)\ndef prepare_worker(): time.sleep(0.2)\ndef f(x): return x\n"
    (tmp_path / "slow_to_import.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    start = time.monotonic()
    assert run_all("slow_to_import:f", [(7,)], limit_seconds=0.15) == GOOD
    assert time.monotonic() - start > 0.4


def test_off_the_main_thread_and_from_several_at_once(functions: str) -> None:
    def both(index: int) -> list[Outcome]:
        return run_all(f"{functions}:answer", [(0.0, index), (1000.0, 0)], limit_seconds=0.3, workers=2)

    with ThreadPoolExecutor(12) as threads:
        found = list(threads.map(both, range(12)))
    assert [good.value for good, _ in found] == list(range(12))
    assert all(late.timed_out for _, late in found)


def test_under_an_event_loop(functions: str) -> None:
    async def both() -> list[list[Outcome]]:
        work = [(0.0, 7), (1000.0, 0)]
        direct = run_all(f"{functions}:answer", work, limit_seconds=0.2)
        thread = await asyncio.to_thread(run_all, f"{functions}:answer", work, limit_seconds=0.2)
        return [direct, thread]

    for good, late in asyncio.run(both()):
        assert [good] == GOOD
        assert late.timed_out


def in_a_child(method: str, functions: str) -> list[Outcome]:
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    process = context.Process(target=_report, args=(answers, functions), daemon=True)
    process.start()
    found = answers.get()
    process.join(20)
    assert process.exitcode == 0
    return found


def _report(answers: "multiprocessing.SimpleQueue[list[Outcome]]", functions: str) -> None:
    answers.put(run_all(f"{functions}:answer", [(0.0, 7), (1000.0, 0)], limit_seconds=0.3))


def test_inside_a_daemonic_forked_process_and_not_with_the_parents_workers(functions: str) -> None:
    assert run_all(f"{functions}:answer", [(0.0, 7)], limit_seconds=20) == GOOD
    mine = set(psutil.Process().children())
    good, late = in_a_child("fork", functions)
    assert [good] == GOOD
    assert late.timed_out
    assert run_all(f"{functions}:answer", [(0.0, 7)], limit_seconds=20) == GOOD
    assert set(psutil.Process().children()) == mine


@pytest.mark.parametrize(
    ("function", "argument"),
    [("time:sleep", 1000), ("math:sqrt", 4), pytest.param("builtins:eval", "9**9**9**9", marks=pytest.mark.slow)],
)
def test_no_worker_outlives_a_killed_parent(
    function: str, argument: object, orphans: list[psutil.Process], root: Path
) -> None:
    """It sleeps, is idle, or holds the interpreter; then the kernel ends it at its bound of processor time."""
    script = (
        "import time\nfrom tasks.parts.workers import run_all\nprint(flush=True)\n"
        f"run_all({function!r}, [({argument!r},)] * 2, limit_seconds=2, workers=2)\ntime.sleep(1000)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE)
    try:
        assert parent.stdout
        parent.stdout.read(1)
        time.sleep(0.5)
        orphans += psutil.Process(parent.pid).children(recursive=True)
    finally:
        parent.kill()
        parent.communicate()
    assert len(orphans) == 2
    assert gone(orphans, seconds=60)
