"""Saving where a run stands, and going on from there to the same end, bit for bit, as if nothing had happened."""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import checkpoint, checkpoint_folder, logs, processes
from bench.config import Run
from bench.dialect import ConfigError
from bench.instruments import Instruments
from bench.learner import Learner
from bench.origin import origin


@dataclass
class Best:
    """The best validation so far, whose weights lie in a folder of their own until the run has chosen."""

    update: int = 0
    score: float = -math.inf

    @property
    def name(self) -> str:
        """Its folder: named by the update, so that a newer one does not take the place of one that a resume needs."""
        return f"best_{self.update:06d}"

    @property
    def known(self) -> bool:
        """Whether there is one yet."""
        return self.score > -math.inf


@dataclass(frozen=True)
class Place:
    """A run's directory with what of the run is saved there."""

    run: Run
    directory: Path
    learner: Learner
    instruments: Instruments
    best: Best = field(default_factory=Best)

    @property
    def checkpoints(self) -> Path:
        """The folder of its checkpoints."""
        return self.directory / "checkpoints"

    @property
    def shared(self) -> list[str]:
        """Folders beside the checkpoints that the next one is not whole without."""
        return [self.best.name] if self.best.known else []

    def standing(self) -> dict[str, Any]:
        """What the training loop knows beside models and counters: logs, the best so far, memory as measured,
        and which of the user's functions have shown that they work."""
        best = {"update": self.best.update, "score": self.best.score} if self.best.known else None
        return {
            "logs": logs.position(self.directory),
            "best": best,
            "memory": self.instruments.memory.report(),
            "called": sorted(self.learner.sampler.rewarder.called),
        }


# Saving


def save(place: Place) -> None:
    """A checkpoint if the advance that has just ended passed a multiple of `checkpoint.every`; never of the end."""
    config, update = place.run.checkpoint, place.learner.cast.progress.update
    if update >= place.run.budget.updates or not _passed(place, config.every):
        return
    checkpoint.save(
        place.checkpoints,
        place.learner.cast,
        keep=config.keep,
        extra=place.standing() if processes.is_main() else {},
        origin=origin(place.run),
        needs=tuple(place.shared),
        stays=_passed(place, config.keep_every),
    )


def _passed(place: Place, every: int) -> bool:
    update = place.learner.cast.progress.update
    return every > 0 and update // every > (update - place.learner.updates_per_advance) // every


def save_best(place: Place, update: int, score: float) -> None:
    """Keep the present weights as the best so far; those of before go as soon as no checkpoint needs them."""
    place.best.update, place.best.score = update, score
    checkpoint.save_model(place.learner.cast.policy, place.checkpoints / place.best.name, origin(place.run))
    if processes.is_main():
        checkpoint_folder.prune(place.checkpoints, place.run.checkpoint.keep, place.shared)


def save_final(place: Place, chosen: int, weights: str) -> None:
    """The final model, after which nothing is trained any more, whenever the run is killed."""
    extra = {**(place.standing() if processes.is_main() else {}), "chosen": chosen, "weights_sha256": weights}
    record = {**origin(place.run), "progress": vars(place.learner.cast.progress), "extra": extra}
    checkpoint.save_model(place.learner.cast.policy, place.checkpoints / checkpoint.FINAL, record)


def kept_at_most(run: Run) -> tuple[int, int]:
    """How many checkpoints and how many folders of the model alone a run has on its disk at one time."""
    config, last = run.checkpoint, run.budget.updates - 1
    # A new one is written before the oldest goes.
    newest = min(config.keep + 1, last // config.every) if config.every else 0
    stay = last // config.keep_every if config.keep_every else 0
    return newest + stay, 3 if run.validation.select == "validation" else 1


def require_room(place: Place) -> None:
    """Raises ConfigError where the disk has no room for what the run will keep; told before anything is trained."""
    whole, model = checkpoint.predicted_bytes(place.learner.cast)
    kept, models = kept_at_most(place.run)
    used = sum(path.stat().st_size for path in place.checkpoints.rglob("*") if path.is_file())
    try:
        needed = max(0, kept * whole + models * model - used)
        checkpoint_folder.require_room(place.checkpoints, needed, f"what the run keeps ({kept} checkpoints)")
    except checkpoint_folder.NoRoom as error:
        raise ConfigError([str(error)]) from None


# Resuming


def newest(place: Place) -> Path | None:
    """The newest point that is whole, to go on from; None is the start. Logs are cut back to it."""
    folder = processes.from_main(lambda: _newest(place))
    if processes.is_main():
        logs.cut_back(place.directory, {} if folder is None else checkpoint.marker_of(folder)["extra"]["logs"])
    return folder


def is_final(folder: Path | None) -> bool:
    """Whether it is the final model, after which nothing is trained."""
    return folder is not None and folder.name == checkpoint.FINAL


def take_up(place: Place, folder: Path) -> dict[str, Any]:
    """Put everything as it was there; returns what is known of it beside models and counters."""
    extra, cast = checkpoint.marker_of(folder)["extra"], place.learner.cast
    if processes.is_main():
        print(f"{place.directory}: goes on from {folder.name}", file=sys.stderr)
    if is_final(folder):
        checkpoint.load_weights(cast.policy, folder)
        checkpoint.set_progress(cast, folder)
    else:
        checkpoint.restore(folder, cast)
    if extra["best"] is not None:
        place.best.update, place.best.score = extra["best"]["update"], extra["best"]["score"]
    place.instruments.memory.add(extra["memory"])
    place.learner.sampler.rewarder.called.update(extra["called"])
    return extra


def _newest(place: Place) -> Path | None:
    checkpoint_folder.clean(place.checkpoints)
    for half in place.directory.rglob(".*.tmp"):
        half.unlink()
    for folder in _candidates(place.checkpoints):
        short = logs.held(place.directory, checkpoint.marker_of(folder)["extra"]["logs"])
        if not is_final(folder) and not place.learner.can_go_on(checkpoint.progress_of(folder)):
            checkpoint_folder.say_skipped(folder, "the pairs that it was training on are missing or changed")
            continue
        if short is None:
            return folder
        print(f"{place.directory}: {short} lost lines that {folder.name} counts on; not gone on from", file=sys.stderr)
    return None


def _candidates(checkpoints: Path) -> Iterator[Path]:
    final = checkpoints / checkpoint.FINAL
    if (final / checkpoint_folder.MARKER).exists():
        fault = checkpoint_folder.fault_of(final)
        if fault is None:
            yield final
        else:
            checkpoint_folder.say_skipped(final, fault)
    yield from checkpoint_folder.newest_whole(checkpoints)
