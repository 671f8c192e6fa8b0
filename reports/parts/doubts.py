"""What makes a score say less than it seems: cut or slow answers, equal samples, guesses, leaks, a noisy reward."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reports.parts.arms import Arm
from reports.parts.cards import Card, by_model, cards_of
from reports.parts.table import percent

MUCH_TRUNCATED = 0.1
"""Above this share of cut completions a score says as much about the token limit as about the model."""

COMPARED = {
    "num_problems": "numbers of problems",
    "samples": "numbers of samples",
    "temperature": "temperatures",
    "top_p": "top-p",
    "max_completion_tokens": "token limits",
    "prompt": "prompts",
    "prompt_format": "prompt formats",
}
"""What must be equal for scores to stand in one table."""


def doubts(arms: Sequence[Arm]) -> Iterator[str]:
    """One sentence for each thing, and for each model where it is about one."""
    yield from _settings(arms)
    models = by_model(arms)
    for label, cards in models.items():
        for line in (_truncated(cards), _timeouts(cards), _identical(cards)):
            if line:
                yield f"{label}{'' if ' on ' in label else f' on {arms[0].task}'}: {line}."
    yield from _guesses(arms[0].task, models)
    yield from _overlaps(arms)
    for arm in arms:
        for reward in dict.fromkeys(_reward(run.run.get("reward") or {}) for run in arm.runs):
            if reward:
                yield f"{arm.label} on {arms[0].task}: trained on {reward}; evaluation used the true verdict."
    yield from _sparse(arms)


def _settings(arms: Sequence[Arm]) -> Iterator[str]:
    """Settings of the evaluation that differ between models which stand in one table."""
    cards = [one for _, _, _, evaluation, one in cards_of(arms) if evaluation in ("start", "test")]
    for key, name in COMPARED.items():
        found = sorted({str(one[key]) for one in cards if one.get(key) is not None})
        if len(found) > 1:
            yield f"On {arms[0].task} the models were evaluated with different {name} ({', '.join(found)})."


def _truncated(cards: Sequence[Card]) -> str:
    worst = max(cards, key=lambda one: one.get("truncated_rate") or 0.0)
    if (worst.get("truncated_rate") or 0.0) <= MUCH_TRUNCATED:
        return ""
    most = "up to " if len(cards) > 1 else ""
    limit = worst.get("max_completion_tokens")
    return f"{most}{percent(worst['truncated_rate'])} of the completions were cut at the token limit ({limit})"


def _timeouts(cards: Sequence[Card]) -> str:
    count = sum(one["timeouts"] or 0 for one in cards)
    responses = f"{count} response{'' if count == 1 else 's'}"
    return f"the grader timed out on {responses}" if count else ""


def _identical(cards: Sequence[Card]) -> str:
    if not any(one.get("identical") for one in cards):
        return ""
    return "samples are identical, pass@k equals pass@1; no larger K is shown"


def _guesses(task: str, models: Mapping[str, Sequence[Card]]) -> Iterator[str]:
    flagged = {
        label: [one for one in of if one.get("guess_flag") and one["guess_share"] > 0] for label, of in models.items()
    }
    cards = [one for of in flagged.values() for one in of]
    if cards:
        worst = max(cards, key=lambda one: one["guess_share"])
        labels = ", ".join(label for label, of in flagged.items() if of)
        yield (
            f"On {task} blind guesses alone (chance {worst['guess_rate']:g} each) would reach up to "
            f"{percent(worst['guess_share'])} of Pass@{worst['largest_k']}: {labels}."
        )


def _overlaps(arms: Sequence[Arm]) -> Iterator[str]:
    found: dict[tuple[int, int, Any], None] = {}
    for run in (run for arm in arms for run in arm.runs):
        one: Mapping[str, Any] = run.overlap or {}
        exact, ten_gram = (int(one.get(key) or 0) for key in ("exact", "ten_gram"))
        if exact or ten_gram:
            found[exact, ten_gram, one.get("num_test")] = None
    for exact, ten_gram, total in found:
        of = f" of {total}" if total else ""
        yield (
            f"On {arms[0].task} test problems stand in the training data: {exact}{of} word for word, {ten_gram}{of} by "
            "a run of ten words."
        )


def _reward(reward: Mapping[str, Any]) -> str:
    """How the reward of a training differs from the verifier's verdict on every prompt; empty where it does not.

    What a correct and a wrong answer are worth is no difference: correct is always worth more.
    """
    source, noise = reward.get("source", "verifier"), reward.get("noise") or {}
    functions, form = len(reward.get("functions") or ()), reward.get("format") or 0
    own = f"the user's own reward function{'' if functions == 1 else f's ({functions})'}"
    parts = {
        "random": ["a random reward"],
        "format_only": ["a reward for the format alone"],
        "functions": [own],
    }.get(source, [])
    parts += [f"{own} beside the verdict"] if functions and source == "verifier" else []
    parts += [f"a score for the format (weight {form:g})"] if form and source in ("verifier", "functions") else []
    flips = [f"{percent(noise[key])} {words}" for key, words in _FLIPS.items() if noise.get(key)]
    parts += [f"a noisy verdict ({', '.join(flips)})"] if flips else []
    sparsity = reward.get("sparsity", 1.0)
    parts += [f"labels for {percent(sparsity)} of the prompts or pairs"] if sparsity < 1 else []
    return " and ".join(parts)


def _sparse(arms: Sequence[Arm]) -> Iterator[str]:
    """What algorithms make of prompts without a label: the same updates are not the same compute, nor the same data."""
    found: dict[str, list[str]] = {}
    for arm in arms:
        settings = arm.runs[0].run  # an arm's runs differ in their seed alone
        share = (settings.get("reward") or {}).get("sparsity", 1.0)
        objective: Mapping[str, Any] = settings.get("objective") or {}
        if share == 1:
            continue
        if objective.get("kind") == "preference":
            effect = f"learns from about {percent(share, 0)} of its pairs"
        elif (objective.get("selection") or {}).get("kind") == "drop_uniform_groups":
            effect = f"replaces prompts without a label, sampling about {1 / share:.2g} times as many"
        else:
            effect = f"trains on batches cut to about {percent(share, 0)}"
        found.setdefault(effect, []).append(arm.label)
    if found:
        effects = "; ".join(f"{', '.join(labels)}: {effect}" for effect, labels in found.items())
        yield f"On {arms[0].task} equal updates are not equal compute or data, for labels are sparse ({effects})."


_FLIPS = {"false_positive": "false positives", "false_negative": "false negatives"}
