"""The one loader: layers of plain data (preset, file, command line) become a validated `Run`, or a list of mistakes."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from algorithms.axes.knobs import kind_of
from algorithms.axes.objective import Objective
from bench import catalog, checks
from bench.config import Run, Section
from bench.config_critic import DEFAULT_KIND
from bench.dialect import ConfigError as ConfigError
from bench.dialect import parse_yaml, read_yaml
from bench.explain import explain, shown
from bench.refusals import double_kl, no_critic, without_double_kl
from bench.schema import Place

_ROOT = Place(Run)
ENGINE_CORRECTION = "token_truncate"
_Layer = Mapping[str, Any]
# A default component is a layer too, so that one of its knobs can be given without its kind.
_DEFAULTS: _Layer = {
    name: field.default.model_dump(mode="json")
    for name, field in Run.model_fields.items()
    if isinstance(field.default, Section)
}


def load_run(path: Path | None, overrides: Sequence[str] = ()) -> Run:
    """The run that a YAML file (none: nothing but defaults) and `key=value` overrides describe.

    Raises:
        ConfigError: every mistake, one line each.
    """
    return build_run({} if path is None else read_yaml(path), nested(parse_overrides(overrides)))


def build_run(*layers: _Layer) -> Run:
    """The run that layers of plain data describe: later ones over earlier ones, and all of them over the preset.

    Raises:
        ConfigError: every mistake, one line each.
    """
    checked = [without_double_kl(layer) for layer in layers]
    spelled = [_spelled_out(_ROOT, layer) for layer, _ in checked]
    lines = [line for _, refused in checked for line in refused] + _idle_algorithm(spelled)
    preset, unknown = _preset(spelled)
    merged: Any = {}
    for layer in (_DEFAULTS, preset, *spelled):
        merged = _merged(_ROOT, merged, layer)
    default = engine_default(merged, preset)
    if default:
        # Below what the user gives, so the layers are laid once more.
        merged = {}
        for layer in (_DEFAULTS, preset, default, *spelled):
            merged = _merged(_ROOT, merged, layer)
    if preset and isinstance(merged.get("critic"), Mapping) and not _trains_a_critic(merged, preset):
        # Said before its knobs are looked at: what they lack would not help.
        lines.append(no_critic(merged["algorithm"]))
        merged = {**merged, "critic": None}
    if isinstance(merged.get("critic"), Mapping):
        merged = {**merged, "critic": {"kind": DEFAULT_KIND, **merged["critic"]}}
    try:
        run = Run.model_validate_json(json.dumps(merged))
    except ValidationError as error:
        found = explain(error, _ROOT, merged)
        # Without a preset there is no objective to speak of.
        found = [line for line in found if not (unknown and line.startswith(("algorithm", "objective")))]
        raise ConfigError(lines + unknown + found) from None
    lines += unknown + checks.check(run)
    if lines:
        raise ConfigError(lines)
    return run


def change(run: Run, changes: Mapping[str, object]) -> Run:
    """A run that differs in some dotted knobs, validated like any other.

    Raises:
        ConfigError: every mistake, one line each.
    """
    return build_run(run.dump(), nested(changes))


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Dotted knobs and their values from `key=value`, the value read as in a YAML file.

    Raises:
        ConfigError: every text that is not of that form, gives a knob twice, or whose value is not YAML; one line
            alone if the texts ask for KL in the reward and in the loss.
    """
    values: dict[str, Any] = {}
    lines: list[str] = []
    pairs = [text.partition("=") for text in texts]
    given = [(key, value) for key, _, value in pairs if value.strip() not in ("false", "null")]
    refused = double_kl((key, value) for key, value in given if key.startswith("objective."))
    if refused:
        raise ConfigError(refused)
    for key, equals, value in pairs:
        text = f"{key}{equals}{value}"
        if not equals or not all(key.split(".")):
            lines.append(f"{text}: write a knob as key=value, such as optimizer.lr=1e-4")
        elif not value.strip():
            lines.append(f"{key}: no value given; write {key}=null for none")
        elif key in values:
            lines.append(f"{key}: given twice on the command line")
        else:
            try:
                values[key] = parse_yaml(value, f"{key}={value}")
            except ConfigError as error:
                lines += error.lines
    if lines:
        raise ConfigError(lines)
    return values


def nested(knobs: Mapping[str, object]) -> dict[str, Any]:
    """Dotted knobs as nested sections, so that they can be a layer.

    Raises:
        ConfigError: one knob contradicts another, such as `critic=null critic.lr=1`.
    """
    layer: dict[str, Any] = {}
    lines: list[str] = []
    for key, value in knobs.items():
        inside = value
        for name in reversed(key.split(".")):
            inside = {name: inside}
        if not _added(layer, _spelled_out(_ROOT, inside)):
            lines.append(f"{key}: {shown(value)} given, but that contradicts another knob given beside it")
    if lines:
        raise ConfigError(lines)
    return layer


def flat(data: _Layer) -> dict[str, Any]:
    """Nested sections as dotted knobs: the reverse of `nested`."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        inside = flat(value) if isinstance(value, Mapping) else {}
        found |= {f"{name}.{key}": item for key, item in inside.items()} or {name: value}
    return found


def plain_objective(objective: Objective) -> dict[str, Any]:
    """An objective as plain data, kinds included."""
    return TypeAdapter(Objective).dump_python(objective, mode="json")


def _added(layer: dict[str, Any], more: _Layer) -> bool:
    """Put one knob beside those that the same layer already has, unless they contradict each other."""
    for name, value in more.items():
        present = layer.setdefault(name, value)
        if isinstance(present, dict) and isinstance(value, dict):
            if present is not value and not _added(present, value):
                return False
        elif present != value:
            return False
    return True


def _spelled_out(place: Place, value: Any) -> Any:
    """The value with every name that stands for a component written as `{kind: name}` (for a task `{name: ...}`)."""
    if isinstance(value, str) and place.tag is not None:
        return {place.tag: value}
    if not isinstance(value, Mapping):
        return value
    inside = place.knobs(value) if place.tag != "name" else {}
    return {key: _spelled_out(inside[key], item) if key in inside else item for key, item in value.items()}


def _merged(place: Place, base: Any, over: Any) -> Any:
    """`over` laid over `base`; a component of another kind replaces the old one together with its knobs."""
    if not (isinstance(base, Mapping) and isinstance(over, Mapping)):
        return over
    if place.tag in over and over[place.tag] != base.get(place.tag, over[place.tag]):
        return over
    inside = place.knobs({**base, **over})
    if not over and not inside:
        return over  # an empty table of names of the user's own, as in evaluation.also={}: none of them
    return {**base, **{key: _merged(inside.get(key, Place(Any)), base.get(key), item) for key, item in over.items()}}


def _preset(layers: Sequence[_Layer]) -> tuple[_Layer, list[str]]:
    """The lowest layer, and a line if there is no algorithm of the name given."""
    given = [layer["algorithm"] for layer in layers if "algorithm" in layer]
    name = given[-1] if given else Run.model_fields["algorithm"].default
    if not isinstance(name, str):
        return {}, [f"algorithm: {shown(name)} given, must be {', '.join(catalog.names('algorithms'))}"]
    try:
        objective = catalog.load_preset(name).objective
    except catalog.UnknownName as error:
        return {}, [f"algorithm: {shown(name)} given, {error}"]
    return {"algorithm": name, "objective": plain_objective(objective)}, []


def engine_default(merged: _Layer, preset: _Layer) -> _Layer:
    """What an engine outside the trainer changes in a preset: its log-probabilities are another program's, so the gap
    is weighed out by token truncation at 2.0. Nothing where they are not compared with the trainer's."""
    engine, rollout, published = merged.get("engine"), merged.get("rollout"), preset.get("objective", {})
    apart = isinstance(engine, Mapping) and engine.get("kind") == "vllm"
    compared = not (isinstance(rollout, Mapping) and rollout.get("old_logp") == "sampler")
    if not (apart and compared) or published.get("mismatch") != {"kind": "no_correction"}:
        return {}
    return {"objective": {"mismatch": {"kind": ENGINE_CORRECTION}}}


def engine_source(run: Run, knob: str) -> str | None:
    """Why a knob of the objective has its value, where it is the engine that changed it; None where it is not."""
    axis = getattr(run.objective, "mismatch", None)
    if knob.partition(".")[0] != "mismatch" or axis is None or run.engine.kind != "vllm":
        return None
    return "default with engine=vllm" if kind_of(axis) == ENGINE_CORRECTION else None


def _trains_a_critic(merged: _Layer, preset: _Layer) -> bool:
    """Whether the objective has a critic; where it is mistaken itself, its preset's with the same advantage tells."""
    adapter: TypeAdapter[Objective] = TypeAdapter(Annotated[Objective, Field(discriminator="kind")])
    try:
        return adapter.validate_json(json.dumps(merged["objective"])).needs.critic
    except ValidationError:
        given = merged["objective"].get("advantage") if isinstance(merged["objective"], Mapping) else None
        published = preset["objective"]
        return given != published.get("advantage") or adapter.validate_json(json.dumps(published)).needs.critic


def _idle_algorithm(layers: Sequence[_Layer]) -> list[str]:
    """A line if a later layer asks for another algorithm although an earlier one gives every part of the objective.

    The file that a run leaves behind is such a layer: `bench run run.yaml algorithm=dapo` would train the old objective
    under a new name.
    """
    fixed_by: object = None
    for layer in layers:
        name, objective = layer.get("algorithm", fixed_by), layer.get("objective")
        if fixed_by is not None and name != fixed_by:
            why = "but every part of the objective is already given, so it could not act"
            return [f"algorithm: {shown(name)} given, {why}; remove `objective` from the file"]
        parts = _ROOT.knobs(layer)["objective"].knobs(objective)
        if isinstance(objective, Mapping) and "kind" in objective and set(parts) <= set(objective):
            fixed_by = name
    return []
