"""The two sides of `bench diff`: an algorithm's objective or a whole run, as dotted knobs with their sources."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import catalog
from bench.config import Run
from bench.dialect import ConfigError
from bench.explain import shown
from bench.loading import engine_source, flat, load_run, plain_objective


@dataclass(frozen=True)
class Side:
    """One side of a comparison: dotted knobs of a run or of a preset's objective, and where values come from."""

    knobs: Mapping[str, Any]
    preset: catalog.Preset
    run: Run | None = None
    """None: the side is a preset by itself."""

    @property
    def is_preset(self) -> bool:
        return self.run is None

    def shown(self, knob: str) -> str:
        value = self.knobs.get(knob, "-")
        return value if isinstance(value, str) else shown(value)

    def source(self, knob: str) -> str:
        if knob not in self.knobs or not knob.startswith("objective."):
            return ""
        published = flat({"objective": plain_objective(self.preset.objective)})
        changed = self.knobs[knob] != published.get(knob)
        name = knob.removeprefix("objective.")
        by_engine = None if self.run is None else engine_source(self.run, name)
        return (by_engine or "this run") if changed else self.preset.source(name)


def side(name: str) -> Side:
    """An algorithm by name, or a run by its file or folder.

    Raises:
        ConfigError: there is neither.
    """
    path = Path(name) / "run.yaml" if (Path(name) / "run.yaml").is_file() else Path(name)
    if path.is_file():
        config = load_run(path)
        return Side(flat(config.dump()), catalog.load_preset(config.algorithm), config)
    try:
        preset = catalog.load_preset(name)
    except catalog.UnknownName as error:
        raise ConfigError([f"{name}: there is no such file, and {error}"]) from None
    return Side(flat({"objective": plain_objective(preset.objective)}), preset)
