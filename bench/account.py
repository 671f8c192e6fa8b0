"""A run in a few lines, printed when it ends: what moved, what the test split says, and what not to worry about."""

from collections.abc import Sequence
from typing import Any

from bench.store import RunRecord

LOSS_NOTE = (
    "A loss near 0 is normal: with centred advantages and a ratio of 1 it is 0 by construction, whatever is learnt. "
    "Watch reward/mean, validation/pass@1 and grad_norm instead."
)


def account(run: RunRecord) -> list[str]:
    """Lines for a reader; nothing is said about what the run did not record."""
    lines: list[str] = []
    for name, words in (("reward/mean", "training reward"), ("validation/pass@1", "validation Pass@1")):
        values = _column(run.metrics, name)
        if len(values) > 1:
            (first, before), (last, after) = values[0], values[-1]
            lines.append(f"{words}: {before:.3f} at update {first}, {after:.3f} at update {last}")
    lines += _reward_model(run)
    test, start = run.estimates("test"), run.estimates("start")
    if test is not None:
        identical = (run.manifest("test") or {}).get("identical")
        k = test.ks[0] if identical else test.ks[-1]
        for words, estimated in (("starting model", start), ("final model", test)):
            if estimated is not None:
                passes = f"Pass@1 {estimated.pass_at(1).mean():.3f}, " if 1 in estimated.ks and k > 1 else ""
                largest = f"Pass@{k} {estimated.pass_at(k).mean():.3f}, Maj@{k} {estimated.maj_at(k).mean():.3f}"
                lines.append(f"test, {words}: {passes}{largest}")
        if identical:
            lines.append("samples are identical (temperature 0), so pass@k equals pass@1 and no larger K is shown")
        for name in [name for name in run.evaluations if name.startswith("test_")]:
            other = run.estimates(name)
            if other is not None and 1 in other.ks:
                lines.append(f"test on {name.removeprefix('test_')}, final model: Pass@1 {other.pass_at(1).mean():.3f}")
    if run.status.state == "finished" and any("ratio/mean" in record for record in run.metrics):
        lines.append(LOSS_NOTE)
    return lines


def _reward_model(run: RunRecord) -> list[str]:
    """What a learned reward orders right, on held-out pairs before the run and on the policy's own samples in it."""
    about, lines = run.reward_model or {}, list[str]()
    if about.get("accuracy") is not None:
        low, high = (about["interval"][end] for end in ("low", "high"))
        bounds = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
        held_out = about["held_out"]
        lines.append(
            f"reward model: orders {about['accuracy']:.3f}{bounds} of {held_out['pairs']} held-out pairs of "
            f"{held_out['prompts']} prompts as the verifier does"
        )
    names = ("reward_model/mean", "reward/accuracy", "reward_model/pair_accuracy")
    scores, verdicts, ordered = (_column(run.metrics, name) for name in names)
    if len(scores) > 1 and len(verdicts) > 1:
        lines.append(
            f"reward model's score: {scores[0][1]:.3f} at update {scores[0][0]}, {scores[-1][1]:.3f} at update "
            f"{scores[-1][0]}; share correct by the verifier: {verdicts[0][1]:.3f}, then {verdicts[-1][1]:.3f}"
        )
    if len(ordered) > 1:
        lines.append(f"pairs that it orders right: {ordered[0][1]:.3f} at first, {ordered[-1][1]:.3f} in the end")
    return lines


def _column(metrics: Sequence[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(record["update"], record[name]) for record in metrics if isinstance(record.get(name), float)]
