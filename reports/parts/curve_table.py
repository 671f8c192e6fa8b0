"""The numbers behind the curves of Pass@K and Maj@K: every K, with pointwise intervals and simultaneous bands."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.statistics import Band, problems_band
from reports.parts.arms import Arm
from reports.parts.page import slug
from reports.parts.scores import NAMES, Measure, changes_of, gain, protocol, score, starts_of, values
from reports.parts.table import Table, cells, number

MEASURES: tuple[Measure, ...] = ("pass", "maj")


def change_band(arm: Arm, measure: Measure, ks: Sequence[int]) -> Band | None:
    """The change against the starting model, mean over seeds, with its band over problems; None where unknown."""
    changes = [changes_of(arm, measure, k) for k in ks]
    known = [one.mean(axis=0) for one in changes if one is not None]
    return problems_band(np.stack(known, axis=1)) if len(known) == len(ks) else None


def curves_table(task: str, arms: Sequence[Arm], ks: Sequence[int]) -> Table:
    """A row for each model and measure, a column for each K."""
    rows, records = [], []
    for name, start in starts_of(arms).items():
        for measure in MEASURES:
            means = [float(values(start, measure, k).mean()) for k in ks]
            rows.append(cells(name, f"{NAMES[measure]}@K", *map(number, means)))
            facts = {"task": task, "algorithm": "", "arm": name, "measure": measure}
            records += [{**facts, "k": k, "mean": mean, "seeds": 1} for k, mean in zip(ks, means, strict=True)]
    for arm in arms:
        for measure in MEASURES:
            found = [score(arm, measure, k) for k in ks]
            rows.append(cells(arm.label, f"{NAMES[measure]}@K", *(number(one.mean if one else None) for one in found)))
            band = change_band(arm, measure, ks)
            for index, (k, one) in enumerate(zip(ks, found, strict=True)):
                facts = {"mean": one.mean, "seeds": one.n, "low": one.low, "high": one.high} if one else {}
                records.append(
                    {**arm.keys, "measure": measure, "k": k, **facts, **_change(arm, measure, k, band, index)}
                )
    caption = (
        "Mean over seeds at every K. The CSV file has the 95 % t intervals over seeds and the changes with their 95 % "
        f"intervals over problems, at each K (change) and simultaneous over all K (band). {protocol(arms)}"
    )
    columns = ("Algorithm", "Measure", *(f"K = {k}" for k in ks))
    return Table(f"curves_{slug(task)}", caption, columns, tuple(rows), tuple(records), num_text_columns=2)


def _change(arm: Arm, measure: Measure, k: int, band: Band | None, index: int) -> dict[str, Any]:
    change = gain(arm, measure, k).get("problems")
    if change is None:
        return {}
    pointwise = {"change": change.mean, "change_low": change.low, "change_high": change.high}
    both = {"band_low": float(band.low[index]), "band_high": float(band.high[index])} if band else {}
    return pointwise | both
