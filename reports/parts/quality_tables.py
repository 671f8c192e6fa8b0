"""How well a baseline or an advantage did, in tables: each measure with its interval over problems."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.statistics import baseline_quality as quality
from bench.statistics.agreement import MEASURES, Agreement
from bench.statistics.baseline_quality import SCALED, VALUES, Line
from reports.parts.arms import Arm, counted
from reports.parts.page import sentences
from reports.parts.quality import NAMES, REFERENCES
from reports.parts.table import NOT_AVAILABLE, Cell, Table, cells, number

Measure = Callable[..., Agreement | None]
IN_REWARD = ("error", "bias")
"""Measures in units of reward."""
SAME = "The same tokens as in the table of baselines."
INTERVALS = "95 % intervals: bootstrap over problems, for these checkpoints and not for new training seeds."
COLUMNS = {
    "error": "RMSE",
    "error_at_best_factor": "RMSE at best factor",
    "bias": "Bias",
    "correlation": "Correlation",
    "rank_correlation": "Rank correlation",
    "explained": "Explained",
}


def last_of(arm: Arm) -> list[Line]:
    return [line for run in arm.finished for line in quality.latest(run.baseline_quality)]


def updates_of(lines: Sequence[Line]) -> list[int]:
    return sorted({line["update"] for line in lines})


def series_of(
    bins: Mapping[str, Sequence[Line]], measure: Measure, names: Sequence[str]
) -> dict[str, dict[str, Agreement]]:
    found = {name: {label: measure(lines, name) for label, lines in bins.items()} for name in names}
    return {name: {label: one for label, one in own.items() if one is not None} for name, own in found.items()}


def table_of(name: str, arms: Sequence[Arm], measure: Measure, names: Sequence[str], shown: Sequence[str]) -> Table:
    rows, records = [], []
    of_values = measure is quality.value_quality
    for arm in arms:
        found = {estimator: measure(last_of(arm), estimator) for estimator in names}
        for estimator, one in found.items():
            if one is not None:
                unit_free = not of_values and estimator in SCALED
                texts = [NOT_AVAILABLE if unit_free and key in IN_REWARD else _cell(one, key) for key in shown]
                rows.append(cells(arm.label, NAMES[estimator], *texts))
                records.append({**arm.keys, "estimator": estimator, **_record(one)})
        # What an estimator has to be below to be worth anything.
        reference = next(one for one in found.values() if one is not None)
        key = "error_of_mean" if of_values else "error_of_zero"
        rows.append(cells(arm.label, REFERENCES[key], _cell(reference, key), *[NOT_AVAILABLE] * (len(shown) - 1)))
    columns = ("Algorithm", "Estimator", *(COLUMNS[key] for key in shown))
    return Table(name, _caption(arms, of_values), columns, tuple(rows), tuple(records), num_text_columns=2)


def _record(found: Agreement) -> dict[str, Any]:
    record: dict[str, Any] = {"tokens": found.observations, "problems": found.problems}
    for key in MEASURES:
        record |= {key: found[key].value, f"{key}_low": found[key].low, f"{key}_high": found[key].high}
    return record


def by_position(name: str, arms: Sequence[Arm]) -> Table:
    """Error and bias of each baseline by the number of tokens before."""
    labels = list(dict.fromkeys(label for arm in arms for label in quality.absolute_bins(last_of(arm))))
    labels.sort(key=lambda label: int(label.partition("-")[0]))
    rows, records = [], []
    for arm in arms:
        series = series_of(quality.absolute_bins(last_of(arm)), quality.value_quality, VALUES)
        for estimator, own in series.items():
            if own:
                texts = [_with_bias(own[label]) if label in own else NOT_AVAILABLE for label in labels]
                rows.append(cells(arm.label, NAMES[estimator], *texts))
            for label, one in own.items():
                records.append({**arm.keys, "estimator": estimator, "position": label, **_record(one)})
    caption = f"RMSE of each baseline, and under it its bias, by the number of tokens before. {SAME}"
    return Table(name, caption, ("Algorithm", "Estimator", *labels), tuple(rows), tuple(records), num_text_columns=2)


def _cell(found: Agreement, key: str) -> Cell:
    one, sign = found[key], key == "bias"
    return Cell(number(one.value, sign=sign), (f"[{number(one.low, sign=sign)}, {number(one.high, sign=sign)}]",))


def _with_bias(found: Agreement) -> Cell:
    return Cell(number(found["error"].value), (number(found["bias"].value, sign=True),))


def _caption(arms: Sequence[Arm], of_values: bool) -> str:
    if of_values:
        return sentences(
            "Baselines against the true value V(s) of the state before a token: root mean square error (RMSE), bias, "
            "correlations, and the share of the true values' variance that the baseline explains. Mean of V: the error "
            "of the best constant.",
            _whose(arms),
        )
    return sentences(
        "Advantages against the true advantage A(s, a) of a token. Group-standardised ones and those trained on are in "
        "units of their own, and a common factor is the learning rate's business, so all are compared at the factor "
        "that suits them best. The last row: the error of no advantage at all.",
        SAME,
        INTERVALS,
    )


def _whose(arms: Sequence[Arm]) -> str:
    """What the numbers rest on, and what their intervals generalise to."""
    lines = {arm.label: last_of(arm) for arm in arms}
    parts = [
        f"{label}: {len(own)} tokens of {len({line['problem_id'] for line in own})} problems at update "
        f"{' and '.join(map(str, updates_of(own)))}, true values by {quality.continuations(own):.0f} continuations on "
        f"average, standard error {number(quality.standard_error(own))}"
        for label, own in lines.items()
    ]
    return sentences(
        f"Last measurement of each finished run ({counted(arms, lambda arm: len(arm.finished))}): {'; '.join(parts)}.",
        "Correlation is corrected for the noise of the true values, rank correlation is not.",
        INTERVALS,
    )
