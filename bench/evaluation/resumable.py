"""An evaluation that is made once: a finished one is read, a killed one goes on, another K needs no new sample."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard
from filelock import FileLock, Timeout

from bench.config import task_content
from bench.dialect import ConfigError
from bench.evaluation import read_outcomes
from bench.evaluation.driver import Evaluated, Plan, evaluate, write_evaluation
from bench.evaluation.journal import Journal
from bench.fingerprint import data_digest
from bench.generate import Generator
from bench.models import LanguageModel
from bench.problems import load_problems
from bench.progress import progress
from bench.prompting import encode_prompts
from tasks.parts.problem import Task


@dataclass(frozen=True)
class Place:
    """Where an evaluation's files lie, and where its journal does until they are whole."""

    folder: Path
    name: str
    journals: Path


def evaluation_key(
    model: LanguageModel, weights: str, task: Task, plan: Plan, more: Mapping[str, Any] | None = None
) -> str:
    """A digest of all that the outcomes depend on; the prompts enter as the model reads them, template and all.

    Args:
        weights: digest of the model's weights.
        more: what else they depend on, such as an engine that is not the suite's own.
    """
    prompts = encode_prompts(model, task, load_problems(task, plan.split, 0, plan.problems), plan.prompt)
    read = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
    return data_digest({"weights": weights, "prompts": read, **task_content(task), **plan.record(), **(more or {})})


def evaluate_once(
    place: Place,
    key: str,
    model: LanguageModel,
    task: Task,
    plan: Plan,
    ks: Sequence[int],
    generate: Generator,
    about: Mapping[str, Any],
    label: str,
) -> tuple[dict[str, Any], bool]:
    """Evaluate into files; returns the manifest, and whether everything was there already.

    Args:
        key: the evaluation's `evaluation_key`.
        about: what else the manifest says, such as the model's name.
        label: what the progress says.

    Raises:
        ConfigError: another process is making the same evaluation.
    """
    manifest = finished(place, key)
    path = place.journals / f".{place.name}.{key[:12]}.journal.jsonl"
    if manifest is not None and manifest["ks"] == list(ks):
        path.unlink(missing_ok=True)  # a kill came between the last file and this
        return manifest, True
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(f"{path}.lock", timeout=0):
            if manifest is not None:
                evaluated = _stored(place, manifest)
            else:
                journal = Journal(path, key)
                with progress(label, plan.problems * plan.samples) as advance:
                    evaluated = evaluate(model, task, plan, generate, lambda done: advance(done, ""), journal)
            told = {**about, "key": key}
            write_evaluation(place.folder, place.name, evaluated, task, plan, ks, told)
            path.unlink(missing_ok=True)
    except Timeout:
        raise ConfigError([f"{place.folder / place.name}: another process is making this evaluation"]) from None
    Path(f"{path}.lock").unlink(missing_ok=True)
    written = finished(place, key)
    assert written is not None, "it was written just now"
    return written, False


def finished(place: Place, key: str) -> dict[str, Any] | None:
    """The manifest of a finished evaluation with this key; it is written last, so the other files are whole."""
    manifest = read_manifest(place)
    return manifest if manifest is not None and manifest.get("key") == key else None


def read_manifest(place: Place) -> dict[str, Any] | None:
    """The manifest that lies there, of whatever evaluation; None where there is none to read."""
    try:
        return json.loads((place.folder / f"{place.name}.json").read_bytes())
    except (OSError, ValueError):
        return None


def _stored(place: Place, manifest: Mapping[str, Any]) -> Evaluated:
    """A finished evaluation's outcomes and completions, from its files."""
    packed = (place.folder / f"{place.name}.jsonl.zst").read_bytes()
    lines = zstandard.ZstdDecompressor().decompressobj().decompress(packed).decode().splitlines()
    prompting = {name: str(manifest[name]) for name in ("prompt_format", "prompt_sha256")}
    outcomes = read_outcomes(place.folder / f"{place.name}.parquet")
    return Evaluated(outcomes, tuple(json.loads(line) for line in lines), prompting)
