"""Golden files: inputs and another library's results, as JSON that gives back every float32 exactly."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.conformance.trl_compare import Inputs, Online, Outcome, Settings
from bench.conformance.trl_dpo import DpoSettings, Pairs
from bench.conformance.trl_grid import Case
from bench.conformance.trl_grpo import GrpoSettings
from bench.conformance.trl_rloo import RlooSettings
from bench.conformance.trl_step import Graded, LossResult

FAMILIES: dict[str, type[Settings]] = {"grpo": GrpoSettings, "rloo": RlooSettings, "dpo": DpoSettings}
_BOOLEAN = ("mask", "terminated", "chosen_mask", "rejected_mask", "trained")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One case of a golden file."""

    case: Case
    inputs: Inputs
    outcome: Outcome


def write_golden(path: Path, provenance: dict[str, str], stored: Sequence[Stored]) -> None:
    """Write one family's cases, one a line; inputs that several cases share are written once."""
    inputs = {entry.case.inputs: _inputs_to_json(entry.inputs) for entry in stored}
    rows = [json.dumps(_case_to_json(entry)) for entry in stored]
    head = [f'  "provenance": {json.dumps(provenance)}', f'  "inputs": {json.dumps(inputs)}']
    body = ",\n".join(f"    {row}" for row in rows)
    path.write_text("{\n" + ",\n".join(head) + ',\n  "cases": [\n' + body + "\n  ]\n}\n", encoding="utf-8")


def read_golden(path: Path) -> list[Stored]:
    """The cases of a golden file; its name is the family's."""
    content = json.loads(path.read_text(encoding="utf-8"))
    inputs = {name: _inputs_from_json(value) for name, value in content["inputs"].items()}
    return [_stored_from_json(row, inputs, FAMILIES[path.stem]) for row in content["cases"]]


def _case_to_json(entry: Stored) -> dict[str, Any]:
    case, outcome = entry.case, entry.outcome
    row: dict[str, Any] = {
        "name": case.name,
        "inputs": case.inputs,
        "num_microbatches": case.num_microbatches,
        "compares": case.compares,
        "settings": asdict(case.settings),
        "value": _numbers(torch.tensor(outcome.loss.value)),
    }
    tensors = {
        "gradient": outcome.loss.gradient,
        "entropy_gradient": outcome.loss.entropy_gradient,
        "advantages": outcome.advantages,
        "trained": outcome.trained,
    }
    return row | {name: _numbers(value) for name, value in tensors.items() if value is not None}


def _stored_from_json(row: dict[str, Any], inputs: dict[str, Inputs], settings: type[Settings]) -> Stored:
    knobs: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in row["settings"].items()
    }
    case = Case(
        name=row["name"],
        settings=settings(**knobs),
        inputs=row["inputs"],
        num_microbatches=row["num_microbatches"],
        compares=tuple(row["compares"]),
    )
    loss = LossResult(
        value=float(np.float32(row["value"])),
        gradient=torch.tensor(row["gradient"]),
        entropy_gradient=_tensor("entropy_gradient", row.get("entropy_gradient")),
    )
    outcome = Outcome(
        loss=loss,
        advantages=_tensor("advantages", row.get("advantages")),
        trained=_tensor("trained", row.get("trained")),
    )
    return Stored(case=case, inputs=inputs[case.inputs], outcome=outcome)


def _inputs_to_json(inputs: Inputs) -> dict[str, Any]:
    if isinstance(inputs, Pairs):
        return _tensors(inputs)
    return {"logp": _numbers(inputs.logp), "group_size": inputs.rollout.group_size, **_tensors(inputs.rollout)}


def _inputs_from_json(values: dict[str, Any]) -> Inputs:
    read: dict[str, Any] = {
        name: value if isinstance(value, int) else _tensor(name, value) for name, value in values.items()
    }
    return Online(logp=read.pop("logp"), rollout=Graded(**read)) if "logp" in read else Pairs(**read)


def _tensors(holder: Graded | Pairs) -> dict[str, Any]:
    values = {field.name: getattr(holder, field.name) for field in fields(holder)}
    return {name: _numbers(value) for name, value in values.items() if isinstance(value, Tensor)}


def _numbers(values: Tensor) -> Any:
    """Nested lists: the shortest decimals that read back as the same float32, None for NaN, 0 and 1 for booleans."""
    if values.dim():
        return [_numbers(value) for value in values]
    if values.dtype == torch.bool:
        return int(values)
    return None if values.isnan() else float(str(np.float32(values.item())))


def _tensor(name: str, values: list[Any] | None) -> Tensor | None:
    if values is None:
        return None
    numbers = torch.from_numpy(np.array(values, dtype=np.float64))
    return numbers.bool() if name in _BOOLEAN else numbers.float()
