"""The card of an evaluation: what was sampled and how its answers ended, from its manifest; old runs know less."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from bench.evaluation import guess_flag, guess_share
from bench.store import RunRecord
from reports.parts.arms import Arm
from reports.parts.scores import evaluation
from reports.parts.table import NOT_AVAILABLE, Cell, number, percent, words

SAMPLED, ENDED = "Problems, samples each", "Truncated, unparsed, timeouts"
"""Headings of the columns beside a score."""

Card = Mapping[str, Any]
"""The manifest, with the decoding of the training, and the facts at the largest K."""


def card(run: RunRecord, name: str) -> Card | None:
    """The card of one evaluation; None where there is no manifest."""
    manifest = run.manifest(name)
    if not manifest:
        return None
    rollout: Mapping[str, Any] = run.run.get("rollout") or {}
    prompt: Mapping[str, Any] = manifest.get("prompt") or {}
    samples = manifest.get("num_samples") or manifest.get("num_problems", 0) * manifest.get("samples", 0)
    slow, parsed = manifest.get("timed_out_rate"), manifest.get("parsed_rate")
    rates: Mapping[str, float] = manifest.get("tie_rate") or {}
    return {
        **manifest,
        # Training draws from the whole distribution unless a run says otherwise.
        "training_temperature": rollout.get("temperature"),
        "training_top_p": rollout.get("top_p", 1.0) if rollout else None,
        "prompt": f"few_shot_{prompt['shots']}" if prompt.get("shots") else prompt.get("style"),
        "timeouts": None if slow is None else round(slow * samples),
        "unparsed_rate": None if parsed is None else 1 - parsed,
        "tied_rate": rates[max(rates, key=int)] if rates else None,
        **_guesses(run, name, manifest.get("guess_rate")),
    }


def _guesses(run: RunRecord, name: str, rate: float | None) -> dict[str, Any]:
    """What blind guesses reach at the largest K; where all samples of a problem are the same, that is 1."""
    estimates = evaluation(run, name)
    if rate is None or estimates is None:
        return {}
    largest = max(estimates.ks)
    share = guess_share(float(estimates.pass_at(largest).mean()), rate, largest)
    return {"guess_share": share, "guess_flag": guess_flag(rate, largest), "largest_k": largest}


def also_of(arms: Sequence[Arm]) -> list[str]:
    """Labels of the other tasks on which the arms were evaluated, or will be."""
    planned = {
        label for arm in arms for run in arm.runs for label in (run.run.get("evaluation") or {}).get("also") or {}
    }
    return sorted({*planned, *_suffixes(arms, "test_")})


def prompts_of(arms: Sequence[Arm]) -> list[str]:
    """Labels of the further prompts under which the starting models were evaluated."""
    return sorted(_suffixes(arms, "start_") - {*also_of(arms)})


def _suffixes(arms: Sequence[Arm], prefix: str) -> set[str]:
    names = {name for arm in arms for run in arm.runs for name in run.evaluations}
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


def cards_of(arms: Sequence[Arm]) -> Iterator[tuple[str, Arm, RunRecord, str, Card]]:
    """Every evaluation of the arms: what to call its model, its arm, run and name, and its card."""
    also, prompts = also_of(arms), prompts_of(arms)
    for start in (True, False):
        kinds = {"": ""} | {f"_{label}": f" on {words(label)}" for label in also}
        kinds |= {f"_{label}": f", prompt {words(label)}" for label in prompts} if start else {}
        for suffix, text in kinds.items():
            for arm in arms:
                for run in arm.runs:
                    name = f"{'start' if start else 'test'}{suffix}"
                    found = card(run, name)
                    if found:
                        yield f"{'Starting model' if start else arm.label}{text}", arm, run, name, found


def by_model(arms: Sequence[Arm]) -> dict[str, list[Card]]:
    """The cards under the name of their model, the starting model first."""
    found: dict[str, list[Card]] = {}
    for label, _, _, _, one in cards_of(arms):
        found.setdefault(label, []).append(one)
    return found


def same(cards: Sequence[Card], key: str) -> str:
    """The value that all cards share, or all of them."""
    values = [one.get(key) for one in cards]
    return " / ".join(dict.fromkeys(NOT_AVAILABLE if value is None else _plain(value) for value in values))


def mean(cards: Sequence[Card], key: str) -> float | None:
    """Mean over the cards; None unless all know it."""
    known = [value for value in (one.get(key) for one in cards) if value is not None]
    return fmean(known) if known and len(known) == len(cards) else None


def timeouts(cards: Sequence[Card]) -> int | None:
    """Responses on which the grader timed out, over all cards; None unless all know it."""
    known = [one["timeouts"] for one in cards if one["timeouts"] is not None]
    return sum(known) if known and len(known) == len(cards) else None


def sampled(cards: Sequence[Card]) -> Cell:
    """Problems, and under them the samples of each: beside a score."""
    return Cell(same(cards, "num_problems"), (same(cards, "samples"),)) if cards else Cell(NOT_AVAILABLE)


def decoding(arms: Sequence[Arm]) -> str:
    """A sentence on temperature and top-p: those of the training and those of the evaluation are two settings each."""
    cards = [one for cards in by_model(arms).values() for one in cards]
    if not cards:
        return ""
    training, evaluation = (
        f"temperature {same(cards, f'{of}temperature')} and top-p {same(cards, f'{of}top_p')}"
        for of in ("training_", "")
    )
    return f"Sampling: {training} in training, {evaluation} in evaluation."


def ended(cards: Sequence[Card]) -> Cell:
    """Truncated, and under it unparsed and timed out: two shares and a count over all evaluations, beside a score."""
    if not cards:
        return Cell(NOT_AVAILABLE)
    others = (percent(mean(cards, "unparsed_rate")), number(timeouts(cards), 0))
    return Cell(percent(mean(cards, "truncated_rate")), others)


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
