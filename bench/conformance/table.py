"""Results of the kit as plain data, and as tables and lines: rows are checks, columns are implementations."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from bench.conformance.checks import CHECKS, Column
from bench.conformance.findings import Finding

MARKS = {"pass": "pass", "deviates": "DEVIATES", "differs": "differs", "not applicable": "-"}
WIDEST = 116
"""Characters of a table before it is cut into two."""
Table = tuple[list[str], list[list[str]]]
"""Header and rows."""


def plain(columns: Sequence[Column]) -> dict[str, Any]:
    """The results as JSON can hold them. Numbers have six digits; one that is not finite is a word, such as "nan"."""
    return {
        "checks": [
            {"name": check.name, "shows": check.shows, "source": check.source, **({"ours": True} if check.ours else {})}
            for check in CHECKS
        ],
        "implementations": [
            {
                "name": column.implementation.name,
                "claims": column.implementation.claimed,
                **({"comparison": True} if column.implementation.comparison else {}),
                "findings": [_plain_finding(column, i, found) for i, found in enumerate(column.findings)],
            }
            for column in columns
        ],
    }


def _plain_finding(column: Column, index: int, found: Finding) -> dict[str, Any]:
    notes = column.implementation.notes or {}
    check = CHECKS[index].name
    plain: dict[str, Any] = {"check": check, "status": found.status}
    if found.measured is not None and found.expected is not None:
        plain |= {"measured": _number(found.measured), "expected": _number(found.expected)}
    if found.detail:
        plain["detail"] = found.detail
    if found.status in ("deviates", "differs") and check in notes:
        plain["note"] = notes[check]
    return plain


def _number(value: float) -> float | str:
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


def to_json(results: Mapping[str, Any]) -> str:
    """The results as text that differs only where they do."""
    return json.dumps(results, indent=1, ensure_ascii=False) + "\n"


def conforms(results: Mapping[str, Any]) -> bool:
    """Whether no check deviates."""
    return not any(_findings(results, "deviates"))


def tables(results: Mapping[str, Any], widest: int = WIDEST) -> list[Table]:
    """One row a check; as many tables as it takes to keep each within `widest` characters."""
    names = [title(check) for check in results["checks"]]
    first = max(map(len, ("check", *names)))
    found: list[Table] = []
    width = widest + 1
    for column in results["implementations"]:
        own = max(len(column["name"]), len(MARKS["deviates"])) + 3  # a rule and a blank on either side
        if width + own > widest:
            found.append((["check"], [[name] for name in names]))
            width = first + 4
        width += own
        found[-1][0].append(column["name"])
        for row, finding in zip(found[-1][1], column["findings"], strict=True):
            row.append(MARKS[finding["status"]])
    return found


def title(check: Mapping[str, Any]) -> str:
    """A check's name, and whether the convention is ours."""
    return f"{check['name']} (ours)" if check.get("ours") else check["name"]


def lines(results: Mapping[str, Any]) -> list[str]:
    """One line a deviation or difference, and the count."""
    found = [_findings(results, status) for status in ("deviates", "differs")]
    told = [f"{name}: {sentence(finding)}" for part in found for name, finding in part]
    return [*told, count(results)]


def count(results: Mapping[str, Any]) -> str:
    """How many cells of the table say what; columns for comparison are left out."""
    counted = _counted(results)
    beside = len(results["implementations"]) - len(counted)
    passed, off, differ, idle = (len(_findings(results, status)) for status in MARKS)
    losses = f"{len(counted)} loss" if len(counted) == 1 else f"{len(counted)} losses"
    text = f"{losses}: {passed} checks pass, {off} deviate, {idle} do not apply"
    text += f", {differ} differ from a convention of ours" if differ else ""
    return text + (f"; for comparison, not counted: {beside}" if beside else "")


def sentence(finding: Mapping[str, Any]) -> str:
    """A deviation in words: the check, both numbers, what they are, and why if it is known."""
    numbers = f"{finding['measured']} where {finding['expected']} is expected; " if "measured" in finding else ""
    note = f" ({finding['note']})" if "note" in finding else ""
    return f"{finding['check']}: {numbers}{finding['detail']}{note}"


def _counted(results: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [column for column in results["implementations"] if not column.get("comparison")]


def _findings(results: Mapping[str, Any], status: str) -> list[tuple[str, Mapping[str, Any]]]:
    return [
        (column["name"], finding)
        for column in _counted(results)
        for finding in column["findings"]
        if finding["status"] == status
    ]
