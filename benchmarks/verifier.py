"""How many completions the verifier grades in a second: the fast path in one and two processes, and the slow path.

Completions are 600 characters of working and a stated answer, right in half of the cases; no two pairs are the same, so
no cache helps. A processor second is what counts where the machine is shared. Prints the table of docs/verifier.md:

    OMP_NUM_THREADS=1 python benchmarks/verifier.py
"""

import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import psutil

from tasks.parts.verify import Asked, grade_all
from tasks.parts.workers import run_all

NUM_FAST, NUM_SLOW, CORES = 10_000, 120, 2
TARGET = 5_000
WORKING = "We write the total as a sum of its parts, $12 + 7 = 19$, and then divide by the number of days. " * 6
ANSWERS: tuple[Callable[[random.Random], str], ...] = (
    lambda rng: str(rng.randrange(10**6)),
    lambda rng: str(rng.randrange(10**4)),
    lambda rng: rf"\frac{{{rng.randrange(1, 999)}}}{{{rng.randrange(1, 999)}}}",
    lambda rng: f"{rng.randrange(10**4)}.{rng.randrange(1, 99)}",
    lambda rng: rf"{rng.randrange(2, 99)}\sqrt{{{rng.randrange(2, 999)}}}",
    lambda rng: f"({rng.randrange(99)}, {rng.randrange(999)})",
    lambda rng: f"{rng.randrange(2, 99)}x^2 + {rng.randrange(2, 99)}x - {rng.randrange(99)}",
    lambda rng: rf"\frac{{{rng.randrange(1, 999)}\pi}}{{{rng.randrange(2, 99)}}}",
)
"""Kinds of answers, in shares like those of MATH: half of them numbers."""
SLOW: tuple[Callable[[random.Random], str], ...] = (
    lambda rng: rf"\int_0^{{{rng.randrange(1, 99)}}} x^{rng.randrange(1, 5)} dx",
    lambda rng: rf"\begin{{pmatrix}} {rng.randrange(99)} & 2 \\ 3 & {rng.randrange(99)} \end{{pmatrix}}",
    lambda rng: f"{rng.randrange(1, 99)}x^2 - {rng.randrange(1, 99)} > 0",
    lambda rng: rf"(-\infty, {rng.randrange(99)}) \cup [{rng.randrange(100, 999)}, \infty)",
)
"""Answers that are judged by the computer algebra system."""


def asked(style: str, number: int, seed: int) -> list[Asked]:
    """Completions with their golds."""
    rng = random.Random(seed)
    found: list[Asked] = []
    for index in range(number):
        kind = ANSWERS[0] if style == "gsm8k" else ANSWERS[index % len(ANSWERS)]
        gold = kind(rng)
        answer = gold if rng.random() < 0.5 else kind(rng)
        ending = f"#### {answer}" if style == "gsm8k" else rf"The answer is $\boxed{{{answer}}}$."
        found.append(Asked(f"{WORKING}\n{ending}", gold))
    return found


def fast(style: str, seed: int, start: float) -> tuple[float, float]:
    """Seconds and processor seconds of NUM_FAST gradings from a common start."""
    items = asked(style, NUM_FAST, seed)
    time.sleep(max(0.0, start - time.time()))
    begin, processor = time.monotonic(), time.process_time()
    grades = grade_all(items, style=style)
    assert not any(grade.timed_out for grade in grades)
    return time.monotonic() - begin, time.process_time() - processor


def fast_rates(style: str, processes: int) -> tuple[float, float]:
    """Gradings a second of all processes together, and a processor second."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        everyone = [style] * processes, range(processes)
        found = list(pool.map(fast, *everyone, [time.time() + 3 + processes] * processes))
    seconds, processor = zip(*found, strict=True)
    return NUM_FAST * processes / max(seconds), NUM_FAST * processes / sum(processor)


def slow_rates(processes: int) -> tuple[float, float]:
    """Judgements a second of the workers together, and a processor second of theirs."""
    rng = random.Random(0)
    pairs = [(SLOW[index % len(SLOW)](rng), SLOW[index % len(SLOW)](rng)) for index in range(NUM_SLOW)]
    judge = "tasks.parts.symbolic:judge"
    run_all(judge, pairs[: 4 * processes], limit_seconds=60, workers=processes)
    before, start = children_seconds(), time.monotonic()
    outcomes = run_all(judge, pairs, limit_seconds=60, workers=processes)
    seconds = time.monotonic() - start
    assert all(outcome.error is None for outcome in outcomes)
    return NUM_SLOW / seconds, NUM_SLOW / (children_seconds() - before)


def children_seconds() -> float:
    """Processor time of the workers so far."""
    return sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children())


def main() -> None:
    """Measure and print."""
    print("| path | processes | gradings a second | a processor second | target |\n|---|---|---|---|---|")
    for style in ("gsm8k", "math"):
        for processes in (1, CORES):
            wall, processor = fast_rates(style, processes)
            target = f"{TARGET:,} a second" if processes == CORES else ""
            print(f"| fast, style {style} | {processes} | {wall:,.0f} | {processor:,.0f} | {target} |", flush=True)
    for processes in (1, CORES):
        wall, processor = slow_rates(processes)
        print(f"| slow (computer algebra) | {processes} | {wall:,.0f} | {processor:,.0f} | |", flush=True)


if __name__ == "__main__":
    main()
