"""What a reader must know before believing a sweep: one sentence for each thing that is off."""

import json
from collections.abc import Iterator, Sequence

from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of, by_task
from reports.parts.doubts import doubts
from reports.parts.scores import evaluated, starts_of


def warnings_of(runs: Sequence[RunRecord]) -> list[str]:
    """All warnings, those about the results first."""
    checks = (_not_finished, _alike, _starts, _seeds, doubts)
    found = [warning for arms in by_task(arms_of(runs)).values() for check in checks for warning in check(arms)]
    return [*found, *_commits(runs), *(line for run in runs for line in _damage(run))]


def _name(arm: Arm, run: RunRecord) -> str:
    return f"{arm.label} on {arm.task}, seed {run.seed}"


def _not_finished(arms: Sequence[Arm]) -> Iterator[str]:
    for arm in arms:
        for run in arm.runs:
            if run.status.state != "finished":
                yield f"{_name(arm, run)}: {run.status.state}{f', {run.status.error}' if run.status.error else ''}."
            elif run.estimates("test") is None:
                yield f"{_name(arm, run)}: finished, but there is no evaluation on test."


def _alike(arms: Sequence[Arm]) -> Iterator[str]:
    """Runs that differ in a seed or a knob and have the same metrics to the last bit: the difference had no effect."""
    twins: dict[str, list[tuple[Arm, RunRecord]]] = {}
    for arm in arms:
        for run in arm.runs:
            trained = [record for record in run.metrics if record.get("update")]
            if trained:
                twins.setdefault(json.dumps(trained, sort_keys=True), []).append((arm, run))
    seeds_of: dict[tuple[str, ...], set[str]] = {}
    for group in twins.values():
        if len(group) > 1:
            labels = tuple(dict.fromkeys(arm.label for arm, _ in group))
            seeds_of.setdefault(labels, set()).update(str(run.seed) for _, run in group)
    for labels, seeds in seeds_of.items():
        which = f"{' and '.join(labels)} are bit-equal (seeds {', '.join(sorted(seeds))})"
        difference = "what sets these arms apart" if len(labels) > 1 else "the seed"
        yield f"On {arms[0].task} the metrics of {which}: {difference} had no effect, so these are no replicates."


def _starts(arms: Sequence[Arm]) -> Iterator[str]:
    if len(starts_of(arms)) > 1:
        yield f"On {arms[0].task} the starting models differ, or they were evaluated differently."
    for arm in arms:
        for run, test in evaluated(arm):
            start = run.estimates("start")
            if start is not None and set(start.problem_id) != set(test.problem_id):
                yield f"{_name(arm, run)}: its starting and final model met different problems, so no change is given."


def _seeds(arms: Sequence[Arm]) -> Iterator[str]:
    """Averages over different seeds are not like for like."""
    by_seeds: dict[tuple[str, ...], list[str]] = {}
    for arm in arms:
        if evaluated(arm):
            by_seeds.setdefault(tuple(str(run.seed) for run, _ in evaluated(arm)), []).append(arm.label)
    if len(by_seeds) > 1:
        sets = "; ".join(f"{', '.join(labels)}: {', '.join(seeds)}" for seeds, labels in by_seeds.items())
        yield f"On {arms[0].task} the means are over different seeds ({sets})."


def _commits(runs: Sequence[RunRecord]) -> Iterator[str]:
    if len(commits_of(runs)) > 1:
        yield f"The runs were made by different code: {'; '.join(commits_of(runs))}."


def commits_of(runs: Sequence[RunRecord]) -> list[str]:
    """The commits that made the runs, and whether anything was changed on top of them."""
    made = [run.provenance for run in runs if run.provenance and run.provenance.get("git_commit")]
    return sorted({f"{p['git_commit'][:10]}{' with uncommitted changes' if p.get('git_dirty') else ''}" for p in made})


def _damage(run: RunRecord) -> Iterator[str]:
    """What could not be read, with paths inside the sweep, so that a report is the same on every machine."""
    lines = [line.replace(f"{run.directory}/", f"{run.id}/") for line in run.problems]
    if lines:
        yield lines[0] + (f", and {len(lines) - 1} more in this run" if len(lines) > 1 else "") + "."
