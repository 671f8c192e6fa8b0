"""Evaluations: how each score was measured, how the answers ended, and what other rules of the vote would give."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.evaluation import Estimates, Variant
from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of
from reports.parts.cards import SAMPLED, Card, by_model, cards_of, mean, same, timeouts
from reports.parts.page import Block, Page, Text, sections, slug
from reports.parts.scores import evaluated, ks_of, starts_of
from reports.parts.table import NOT_AVAILABLE, Cell, Table, cells, number, percent

position = 75

PROTOCOL: Mapping[str, tuple[str, ...]] = {
    SAMPLED: ("num_problems", "samples"),
    "K": ("ks",),
    "Temperature, top-p": ("temperature", "top_p"),
    "In training": ("training_temperature", "training_top_p"),
    "Max tokens": ("max_completion_tokens",),
    "Prompt": ("prompt",),
    "Verifier": ("verifier_version",),
}
"""Columns, and what stands in each, one under the other."""
SHARES = {
    "parsed_rate": "Parsed",
    "truncated_rate": "Truncated",
    "unscorable_rate": "Unscorable",
    "duplicate_rate": "Duplicates",
    "tied_rate": "Tied at largest K",
}
SCORES = {
    "strict_accuracy": "Strict",
    "flexible_accuracy": "Flexible",
    "accuracy_given_parsed": "Given parsed",
}
RULES: Mapping[Variant, str] = {
    "pessimistic": "Ties wrong",
    "random": "Ties at random",
    "optimistic": "Ties right",
    "abstain": "No answer: no vote",
    "vote": "No answer: a vote",
    "drop": "No answer: left out",
    "gold_free": "Gold-free",
}


def render(runs: Sequence[RunRecord]) -> Page:
    """Three tables for each task."""
    return Page("evaluations", "Evaluations", sections(arms_of(runs), _of_task))


def _of_task(task: str, arms: Sequence[Arm]) -> list[Block]:
    found = by_model(arms)
    if not found:
        return [Text("No evaluation yet.")]
    return [_protocol_table(task, arms, found), _answer_table(task, found), _vote_table(task, arms)]


def _protocol_table(task: str, arms: Sequence[Arm], found: Mapping[str, Sequence[Card]]) -> Table:
    overlaps = {arm.label: sorted({overlap(run) for run in arm.runs}) for arm in arms}
    rows = [
        cells(
            label,
            str(len(cards)),
            *(Cell(same(cards, first), tuple(same(cards, key) for key in rest)) for first, *rest in PROTOCOL.values()),
            " / ".join(overlaps.get(label, ["-"])),
        )
        for label, cards in found.items()
    ]
    protocol = [key for keys in PROTOCOL.values() for key in keys]
    keys = ("split", "largest_k", *protocol, "timeouts", *SHARES, *SCORES, "guess_rate", "guess_share", "guess_flag")
    records = [
        {**arm.keys, "seed": run.seed, "evaluation": name, "model": label, **{key: _flat(one.get(key)) for key in keys}}
        | {key: (run.overlap or {}).get(key) for key in ("exact", "ten_gram", "disjoint")}
        for label, arm, run, name, one in cards_of(arms)
    ]
    caption = (
        f"Protocol of the evaluations on {task}. Evaluations: one for each seed. Training and evaluation are decoded "
        "each with their own temperature and top-p. Overlap: test problems that stand in the training data, word for "
        "word / by a run of ten words. The CSV file has a line for each evaluation, with the facts of the next table."
    )
    columns = ("Model", "Evaluations", *PROTOCOL, "Overlap")
    return Table(f"evaluations_{slug(task)}", caption, columns, tuple(rows), tuple(records))


def overlap(run: RunRecord) -> str:
    """Test problems in the training data, exact and by ten words, or why there are none."""
    found = run.overlap
    if found is None:
        return NOT_AVAILABLE
    if found.get("disjoint"):
        return "none by construction"
    return f"{found.get('exact', NOT_AVAILABLE)} / {found.get('ten_gram', NOT_AVAILABLE)}"


def _flat(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value


def _answer_table(task: str, found: Mapping[str, Sequence[Card]]) -> Table:
    rows, records = [], []
    for label, cards in found.items():
        shares, scores = ({key: mean(cards, key) for key in of} for of in (SHARES, SCORES))
        guess = mean(cards, "guess_share")
        flag = ("flagged",) if any(one.get("guess_flag") for one in cards) else ()
        texts = (*map(percent, shares.values()), number(timeouts(cards), 0), *map(number, scores.values()))
        rows.append(cells(label, *texts, Cell(percent(guess), flag)))
        record = {
            "task": task,
            "model": label,
            "evaluations": len(cards),
            **shares,
            "timeouts": timeouts(cards),
            **scores,
        }
        records.append(record | {"guess_share": guess, "guess_flag": bool(flag)})
    caption = (
        "How the answers ended, mean over evaluations. Parsed: an answer was found; truncated: cut at the token limit; "
        "unscorable: the grader could not tell; duplicates: equal to an earlier completion for the same problem; tied: "
        "elections at the largest K that the rule for ties decides; these are shares of all samples or elections. "
        "Timeouts: responses, counted over all evaluations, on which the grader ran out of time. Strict: accuracy "
        "counting only answers in the asked form; flexible: all; given parsed: among completions with an answer. "
        "Guesses: share of Pass@K at the largest K that blind guesses reach, flagged where they expect more than 0.05 "
        "hits."
    )
    columns = ("Model", *SHARES.values(), "Timeouts", *SCORES.values(), "Guesses")
    return Table(f"answers_{slug(task)}", caption, columns, tuple(rows), tuple(records))


def _vote_table(task: str, arms: Sequence[Arm]) -> Table:
    largest = ks_of(arms)[-1]
    models = {name: [start] for name, start in starts_of(arms).items()}
    models |= {arm.label: [test for _, test in evaluated(arm)] for arm in arms if evaluated(arm)}
    rows, records = [], []
    for label, tests in models.items():
        means = {rule: _mean([_by_rule(test, largest, rule) for test in tests]) for rule in RULES}
        rows.append(cells(label, *map(number, means.values())))
        records.append({"task": task, "model": label, "k": largest, **means})
    caption = (
        f"Maj@{largest} by other rules of the vote, the rest kept, mean over seeds. With gold, all correct answers "
        "vote together; gold-free, each answer votes by its own canonical form. Ties wrong and ties right are bounds. "
        "n/a: not stored with this evaluation, which is older than the rule."
    )
    return Table(f"votes_{slug(task)}", caption, ("Model", *RULES.values()), tuple(rows), tuple(records))


def _by_rule(estimates: Estimates, k: int, rule: Variant) -> float | None:
    known = (estimates.ties, estimates.missing, *estimates.variants)
    return float(estimates.maj_at(k, rule).mean()) if k in estimates.ks and rule in known else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
