"""Write the golden files: run by hand, with the pinned TRL installed, when the grid changes."""

import sys
from importlib.metadata import version
from pathlib import Path

from bench.conformance.golden import FAMILIES, Stored, write_golden
from bench.conformance.trl_compare import example_inputs, trl_outcome
from bench.conformance.trl_grid import Case, cases

FOLDER = Path(__file__).parent / "golden"


def capture(case: Case) -> Stored:
    """A case with TRL's own result."""
    inputs = example_inputs(case.inputs, case.settings)
    return Stored(case=case, inputs=inputs, outcome=trl_outcome(inputs, case.settings, case.num_microbatches))


def main() -> None:
    """One file a family."""
    provenance = {name: version(name) for name in ("trl", "torch", "transformers")}
    provenance |= {"command": "python tests/parity/capture.py", "device": "cpu", "dtype": "float32"}
    FOLDER.mkdir(exist_ok=True)
    for family, settings in FAMILIES.items():
        stored = [capture(case) for case in cases() if isinstance(case.settings, settings)]
        path = FOLDER / f"{family}.json"
        write_golden(path, provenance, stored)
        sys.stdout.write(f"{path.name}: {len(stored)} cases, {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
