r"""The verifier: one entrance from a completion and its gold answer to a grade.

    completion -> answer as written -> tree of values -> equal?     most answers, in this process, in microseconds
                                          |-> not understood -> a computer algebra system in a worker with a time limit

The policy is written down in `docs/verifier_policy.md`. A verdict depends on the gold, the answer and `VERSION` alone.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

from tasks.parts.answers import read, too_large
from tasks.parts.equality import canonical_key, printable, same
from tasks.parts.extract import Answer, gsm8k_answer
from tasks.parts.latex import MAX_LENGTH, clean, squashed
from tasks.parts.letters import gold_letter, letter_answer
from tasks.parts.numbers import is_number, plain, stated_number
from tasks.parts.problem import Grade
from tasks.parts.stated import math_answer
from tasks.parts.values import hashed
from tasks.parts.workers import Outcome, run_all

Style = Literal["gsm8k", "math", "mc"]
VERSION = 3
"""Raised whenever a verdict or a key changes. 1: style gsm8k alone."""
_JUDGE = "tasks.parts.symbolic:judge"
_LIMIT_SECONDS = 2.0
_MEMORY_BYTES = 2 << 30
_MAX_CACHED = 50_000
_MAX_KEY = 100


@dataclass(frozen=True)
class Asked:
    """One completion to grade."""

    completion: str
    gold: str
    truncated: bool = False


class _Verdict(NamedTuple):
    """On one pair of answers. `correct` None: not known yet."""

    correct: bool | None
    key: str | None
    timed_out: bool = False


class _Pair(NamedTuple):
    gold: str
    answer: str


def grade(
    completion: str, *, gold: str, style: str, truncated: bool = False, limit_seconds: float = _LIMIT_SECONDS
) -> Grade:
    """Judge a completion against the gold answer; the two are never interchangeable, so `gold` is by keyword only.

    Args:
        style: "gsm8k": one number, compared exactly; `method` "marker" alone is the strict score. "math": an answer in
            LaTeX, strict is "box". "mc": a letter.
        truncated: the completion was cut at its token budget.
        limit_seconds: wall clock for a worker; longer is wrong and `timed_out`, and so is a worker that dies.

    Returns:
        A grade whose `correct` is None where the gold itself cannot be read.

    Raises:
        ValueError: unknown style.
    """
    return grade_all([Asked(completion, gold, truncated)], style=style, limit_seconds=limit_seconds)[0]


def grade_all(
    items: Sequence[Asked], *, style: str, limit_seconds: float = _LIMIT_SECONDS, workers: int | None = None
) -> list[Grade]:
    """Judge many completions, those that need a worker in parallel. Arguments and errors as in `grade`.

    Args:
        workers: processes at a time for those that need one. None: the number of cores, at most 4.

    Raises:
        ValueError: fewer than one worker.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}: must be at least 1")
    if style not in get_args(Style):
        raise ValueError(f"style {style!r} is unknown: must be one of {', '.join(get_args(Style))}")
    if style == "gsm8k":
        return [_gsm8k(item) for item in items]
    if style == "mc":
        return [_letter(item) for item in items]
    stated = [math_answer(item.completion, truncated=item.truncated) for item in items]
    pairs = [_Pair(item.gold, one.text) for item, one in zip(items, stated, strict=True) if one.text is not None]
    verdicts = _verdicts(pairs, limit_seconds, workers)
    readable = {gold: read(gold).kind != "nothing" for gold in {item.gold for item in items}}
    grades: list[Grade] = []
    for item, one in zip(items, stated, strict=True):
        verdict = _Verdict(False, None) if one.text is None else verdicts[_Pair(item.gold, one.text)]
        grades.append(
            Grade(
                correct=verdict.correct if readable[item.gold] else None,
                answer_key=verdict.key,
                method=one.method if verdict.key is not None else "none",
                parsed=verdict.key is not None,
                truncated=item.truncated,
                timed_out=verdict.timed_out,
            )
        )
    return grades


def equal(*, gold: str, answer: str, style: str = "math", limit_seconds: float = _LIMIT_SECONDS) -> bool | None:
    """Whether two answers without any text around them are the same; None where the gold cannot be read."""
    if style != "math":
        completion = f"#### {answer}" if style == "gsm8k" else answer
        return grade(completion, gold=gold, style=style).correct
    if read(gold).kind == "nothing":
        return None
    pair = _Pair(gold, answer)
    return _verdicts([pair], limit_seconds)[pair].correct


def number_of(text: str) -> str | None:
    """The key of a gold answer; None where it is not one number."""
    key = stated_number(plain(text)) if len(text) < 100 else None
    return key if is_number(key) else None


def _gsm8k(item: Asked) -> Grade:
    return _by_key(number_of(item.gold), gsm8k_answer(item.completion, truncated=item.truncated), item.truncated)


def _letter(item: Asked) -> Grade:
    return _by_key(gold_letter(item.gold), letter_answer(item.completion, truncated=item.truncated), item.truncated)


def _by_key(gold_key: str | None, answer: Answer, truncated: bool) -> Grade:
    return Grade(
        correct=None if gold_key is None else answer.key == gold_key,
        answer_key=None if answer.key is None else printable(answer.key),
        method=answer.method,
        parsed=answer.key is not None,
        truncated=truncated,
    )


class _Cache:
    """The latest verdicts, for all threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[object, ...], _Verdict] = OrderedDict()

    def get(self, place: tuple[object, ...]) -> _Verdict | None:
        with self._lock:
            verdict = self._kept.get(place)
            if verdict is not None:
                self._kept.move_to_end(place)
            return verdict

    def put(self, place: tuple[object, ...], verdict: _Verdict) -> None:
        with self._lock:
            self._kept[place] = verdict
            while len(self._kept) > _MAX_CACHED:
                self._kept.popitem(last=False)


_cache = _Cache()


def _verdicts(pairs: Sequence[_Pair], limit_seconds: float, workers: int | None = None) -> dict[_Pair, _Verdict]:
    """Verdicts on different pairs: from the cache, at once, or from the workers."""
    found: dict[_Pair, _Verdict] = {}
    undecided: dict[_Pair, _Verdict] = {}
    for pair in dict.fromkeys(pairs):
        place = (*pair, VERSION, "math", limit_seconds)
        cached = _cache.get(place)
        if cached is not None:
            found[pair] = cached
            continue
        verdict = _at_once(pair)
        if verdict.correct is not None and (verdict.key is not None or _is_nothing(pair)):
            found[pair] = verdict
            _cache.put(place, verdict)
        else:
            undecided[pair] = verdict
    if undecided:
        outcomes = run_all(
            _JUDGE, list(undecided), limit_seconds=limit_seconds, workers=workers, memory_bytes=_MEMORY_BYTES
        )
        for (pair, verdict), outcome in zip(undecided.items(), outcomes, strict=True):
            found[pair] = _judged(pair, verdict, outcome)
            _cache.put((*pair, VERSION, "math", limit_seconds), found[pair])
    return found


def _at_once(pair: _Pair) -> _Verdict:
    gold, answer = read(pair.gold), read(pair.answer)
    verdict, key = same(gold, answer), canonical_key(answer)
    if (verdict is None or key is None) and (too_large(gold) or too_large(answer)):
        # Nobody can compute it within the limit: what a worker would find out slowly.
        return _Verdict(bool(verdict), key or _text_class("timeout", pair.answer), timed_out=verdict is None)
    if key is None and max(len(pair.gold), len(pair.answer)) > MAX_LENGTH:
        return _Verdict(bool(verdict), _text_class("text", pair.answer))
    return _Verdict(verdict, key)


def _is_nothing(pair: _Pair) -> bool:
    return read(pair.answer).kind == "nothing"


def _judged(pair: _Pair, verdict: _Verdict, outcome: Outcome) -> _Verdict:
    """A worker's outcome, where the answer was not decided or its key is not known."""
    if outcome.timed_out or outcome.died:
        key = verdict.key or _text_class("timeout", pair.answer)
        return _Verdict(bool(verdict.correct), key, timed_out=verdict.correct is None)
    judged, key = cast("tuple[bool, str | None]", outcome.value or (False, None))
    correct = judged if verdict.correct is None else verdict.correct
    return _Verdict(correct, verdict.key or key or _text_class("text", pair.answer))


def _text_class(kind: str, answer: str) -> str:
    """The key of an answer that is only compared as text: printable ASCII, and all of it counts however long it is."""
    text = squashed(clean(answer)) or answer
    key = printable(f"{kind}:{text}")
    return key if len(key) <= _MAX_KEY else hashed(kind, [text])
