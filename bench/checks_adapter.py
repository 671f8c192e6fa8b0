"""What an adapter asks of its run: a folder that holds one, its own base, and a way of computing that can carry it."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from algorithms.axes.preference import Preference
from bench.checks_objective import dead_knob
from bench.config import PretrainedModel, Run, local_path

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def adapter_mistakes(run: Run) -> Iterator[str]:
    """One line for each mistake: dotted path, value given, what would be right. Loads no model."""
    adapter = run.adapter
    if adapter is None:
        return
    if not run.objective.needs.reference:
        yield from dead_knob(adapter, "adapter", "reference", f"{run.algorithm} has no reference")
    if adapter.path is None:
        why = "without adapter.path the starting policy is the base"
        yield from dead_knob(adapter, "adapter", "reference", why) if run.objective.needs.reference else ()
    else:
        yield from _base_in_rounds(run, adapter.reference)
        for knob in ("rank", "alpha", "rslora", "targets"):
            yield from dead_knob(adapter, "adapter", knob, "adapter.path brings its own")
        yield from _folder(run, adapter.path)
    if run.parallel.strategy == "fsdp" and run.parallel.processes > 1:
        yield (
            "parallel.strategy: fsdp given with an adapter, whose base would be gathered for every pass and never "
            "trained; give parallel.strategy=ddp, or adapter=null"
        )
    if adapter.quantization != "none" and find_spec("bitsandbytes") is None:
        yield (
            f"adapter.quantization: {adapter.quantization} given, and the package bitsandbytes, which it is computed "
            "with, is not installed here: `pip install bitsandbytes`, or give adapter.quantization=none"
        )


def _base_in_rounds(run: Run, reference: str) -> Iterator[str]:
    """The rule of iterative preference learning is that each round's reference is the policy it begins with."""
    rounds = run.objective.pairing.rounds if isinstance(run.objective, Preference) else 1
    if reference == "base" and rounds > 1:
        yield (
            f"adapter.reference: base given with objective.pairing.rounds {rounds}, whose reference is the policy at "
            "the beginning of each round; leave it out, or give objective.pairing.rounds=1"
        )


def _folder(run: Run, path: str) -> Iterator[str]:
    from bench.adapter_files import base_name, folder_mistakes

    lines = list(folder_mistakes(path))
    yield from lines
    if lines or not isinstance(run.model, PretrainedModel):
        return
    own, other = run.model.path, base_name(path)
    # A folder's name says nothing about what is in it; the names of two models on the hub do.
    on_hub = local_path(run.model) is None and other is not None and bool(_HUB_NAME.fullmatch(other))
    if on_hub and str(other).lower() != own.lower() and not Path(str(other)).exists():
        yield (
            f'adapter.path: "{path}" given, which was trained on {other}, and model.path is {own}; give '
            f"model.path={other}"
        )
