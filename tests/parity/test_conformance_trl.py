"""The conformance kit on TRL itself: today's results are the stored ones, and every deviation has its reason."""

from pathlib import Path

import pytest

from bench.conformance import trl
from bench.conformance.checks import CHECKS, check
from bench.conformance.table import plain, to_json

pytestmark = pytest.mark.reference
TOLD = ("deviates", "differs")


def test_every_deviation_of_trl_is_explained_and_stored(root: Path) -> None:
    try:
        columns = [check(implementation) for implementation in trl.implementations()]
    except ImportError as error:
        pytest.skip(str(error))
    for column in columns:
        notes = column.implementation.notes or {}
        told = {one.name for one, own in zip(CHECKS, column.findings, strict=True) if own.status in TOLD}
        assert told == set(notes), f"{column.implementation.name}: a reason is missing, or given for what agrees"
        assert set(column.implementation.out_of_reach or {}) <= {one.name for one in CHECKS}
    stored = (root / "results/conformance/trl.json").read_text(encoding="utf-8")
    assert stored == to_json(plain(columns)), "docs/conformance.md says how to refresh it"
