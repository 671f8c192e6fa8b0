"""A run in a few lines, printed when it ends: what moved, its health, what the test split says, and what comes next."""

from collections.abc import Sequence
from dataclasses import replace
from shlex import quote
from textwrap import wrap

from bench.evaluation import graded
from bench.health import PAGE, Finding
from bench.health_series import series
from bench.store import RunRecord, Status

LOSS_NOTE = (
    "A loss near 0 is normal: with centred advantages and a ratio of 1 it is 0 by construction, whatever is learnt. "
    "Watch reward/mean, validation/pass@1 and grad_norm instead."
)
COLUMNS = 100
"""Widest line of the part on health."""


def account(run: RunRecord, status: Status | None = None) -> list[str]:
    """Lines for a reader: measurements that the run has, its health, where it lies, and the commands that come next.

    Args:
        status: how it ended, which its file does not say where nothing could be written any more.
    """
    run = run if status is None else replace(run, status=status)
    lines = [*_moved(run), *_reward_model(run), *health_lines(run.health), *_alarms(run), *_evaluated(run)]
    if run.status.state == "finished" and any("ratio/mean" in record for record in run.metrics):
        lines.append(LOSS_NOTE)
    return [
        *lines,
        f"{run.directory}: {run.status.state}{f', {run.status.error}' if run.status.error else ''}",
        *_next(run),
    ]


def _moved(run: RunRecord) -> list[str]:
    lines: list[str] = []
    for name, words in (("reward/mean", "training reward"), ("validation/pass@1", "validation Pass@1")):
        own = series(run.metrics, name)
        if len(own) > 1:
            before, after = (f"{own.values[i]:.3f} at update {own.updates[i]}" for i in (0, -1))
            lines.append(f"{words}: {before}, {after}")
    return lines


def health_lines(findings: Sequence[Finding]) -> list[str]:
    """A line for each question that has an answer, marked and explained where it asks for a look; the others by why."""
    answered = [found for found in findings if found.answer in ("yes", "no")]
    looks = sum(found.look for found in answered)
    size = f"{looks} of {len(answered)} answers ask{'s' * (looks == 1)} for a look (!)" if answered else "no answer yet"
    lines = [f"health: {size}; {PAGE} explains each under its name"]
    for found in answered:
        lines.append(
            f"{'!' if found.look else ' '} {found.question:<33} {found.answer:<3}  {found.numbers:<29} {found.page}"
        )
        if found.look:
            lines += wrap(
                f"{found.text}. To try: {found.advice}", COLUMNS, initial_indent=" " * 6, subsequent_indent=" " * 6
            )
    for answer in ("cannot be told", "not measured"):
        reasons: dict[str, list[str]] = {}
        for found in findings:
            if found.answer == answer:
                reasons.setdefault(found.numbers, []).append(found.name)
        parts = [f"{', '.join(names)} ({reason})" for reason, names in reasons.items()]
        lines += (
            wrap(f"{answer}: {'; '.join(parts)}", COLUMNS, initial_indent="  ", subsequent_indent="    ")
            if parts
            else []
        )
    return lines


def _alarms(run: RunRecord) -> list[str]:
    """Alarms speak while a run goes on; at its end they are counted."""
    parts = [f"{alarm['name']} ({alarm['count']} of {alarm['checked']} records)" for alarm in run.alarms or []]
    return wrap(f"alarms: {', '.join(parts)}", COLUMNS, subsequent_indent="  ") if parts else []


def _evaluated(run: RunRecord) -> list[str]:
    lines: list[str] = []
    test, start = (None if found is None else graded(found) for found in map(run.estimates, ("test", "start")))
    if test is None:
        return lines
    identical = (run.manifest("test") or {}).get("identical")
    k = test.ks[0] if identical else test.ks[-1]
    for words, estimated in (("starting model", start), ("final model", test)):
        if estimated is not None:
            passes = f"Pass@1 {estimated.pass_at(1).mean():.3f}, " if 1 in estimated.ks and k > 1 else ""
            largest = f"Pass@{k} {estimated.pass_at(k).mean():.3f}, Maj@{k} {estimated.maj_at(k).mean():.3f}"
            lines.append(f"test, {words}: {passes}{largest}")
    if identical:
        lines.append("samples are identical (temperature 0), so pass@k equals pass@1 and no larger K is shown")
    for name in [name.removeprefix("test_") for name in run.evaluations if name.startswith("test_")]:
        for words, prefix in (("starting model", "start"), ("final model", "test")):
            other = run.estimates(f"{prefix}_{name}")
            if other is not None and 1 in other.ks:
                lines.append(f"test on {name}, {words}: Pass@1 {graded(other).pass_at(1).mean():.3f}")
    return lines


def _next(run: RunRecord) -> list[str]:
    """What to type now."""
    state, own, sweep = run.status.state, quote(str(run.directory)), quote(str(run.directory.parent))
    if state == "finished":
        return [f"next: bench report {sweep}", f"      bench evaluate {own} --samples 64"]
    if state in ("oom", "diverged"):
        return [f"next: change a knob; this end is a result, and only without {own} the same run starts again"]
    file = quote(str(run.directory / "run.yaml"))
    return [f"next: bench run {file}   (goes on from the newest checkpoint; without one, starts over)"]


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
    scores, verdicts, ordered = (series(run.metrics, name) for name in names)
    if len(scores) > 1 and len(verdicts) > 1:
        lines.append(
            f"reward model's score: {scores.values[0]:.3f} at update {scores.updates[0]}, {scores.values[-1]:.3f} at "
            f"update {scores.updates[-1]}; share correct by the verifier: {verdicts.values[0]:.3f}, then "
            f"{verdicts.values[-1]:.3f}"
        )
    if len(ordered) > 1:
        lines.append(
            f"pairs that it orders right: {ordered.values[0]:.3f} at first, {ordered.values[-1]:.3f} in the end"
        )
    return lines
