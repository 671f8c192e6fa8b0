"""What a reader must know before believing a sweep: one sentence for each thing that is off."""

import json
from collections.abc import Iterator, Sequence

from bench.store import RunRecord
from reports.parts.arms import Arm, arms_of, by_task
from reports.parts.scores import starts_of, tested


def warnings_of(runs: Sequence[RunRecord]) -> list[str]:
    """All warnings, the gravest first."""
    tasks = by_task(arms_of(runs))
    found = [
        warning
        for arms in tasks.values()
        for check in (_not_finished, _alike, _starts, _seeds)
        for warning in check(arms)
    ]
    return [*found, *_commits(runs), *(problem for run in runs for problem in run.problems)]


def _name(arm: Arm, run: RunRecord) -> str:
    return f"{arm.label} on {arm.task}, seed {run.seed}"


def _not_finished(arms: Sequence[Arm]) -> Iterator[str]:
    for arm in arms:
        for run in arm.runs:
            if run.status.state != "finished":
                yield f"{_name(arm, run)} is {run.status.state}{f': {run.status.error}' if run.status.error else ''}."
            elif run.estimates("test") is None:
                yield f"{_name(arm, run)} is finished and has no evaluation on test."


def _alike(arms: Sequence[Arm]) -> Iterator[str]:
    """Runs that differ in a seed or a knob and have the same metrics to the last bit: the difference had no effect."""
    twins: dict[str, list[tuple[Arm, RunRecord]]] = {}
    for arm in arms:
        for run in arm.runs:
            trained = [record for record in run.metrics if record.get("update")]
            if trained:
                twins.setdefault(json.dumps(trained, sort_keys=True), []).append((arm, run))
    for group in twins.values():
        if len(group) > 1:
            names = " and ".join(_name(arm, run) for arm, run in group)
            yield f"{names} have bit-equal metrics: what differs between them had no effect, so they are no replicates."


def _starts(arms: Sequence[Arm]) -> Iterator[str]:
    if len(starts_of(arms)) > 1:
        yield f"On {arms[0].task} the starting models differ, or they were evaluated differently."
    for arm in arms:
        for run, test in tested(arm):
            start = run.estimates("start")
            if start is not None and set(start.problem_id) != set(test.problem_id):
                yield f"{_name(arm, run)}: its starting and final model met different problems, so no change is given."


def _seeds(arms: Sequence[Arm]) -> Iterator[str]:
    """Averages over different seeds are not like for like."""
    by_seeds: dict[tuple[str, ...], list[str]] = {}
    for arm in arms:
        if tested(arm):
            by_seeds.setdefault(tuple(str(run.seed) for run, _ in tested(arm)), []).append(arm.label)
    if len(by_seeds) > 1:
        sets = "; ".join(f"{', '.join(labels)}: {', '.join(seeds)}" for seeds, labels in by_seeds.items())
        yield f"On {arms[0].task} the means are over different seeds ({sets})."


def _commits(runs: Sequence[RunRecord]) -> Iterator[str]:
    commits = sorted(
        {str(run.provenance["commit"])[:10] for run in runs if run.provenance and run.provenance.get("commit")}
    )
    if len(commits) > 1:
        yield f"The runs were made by different commits: {', '.join(commits)}."
