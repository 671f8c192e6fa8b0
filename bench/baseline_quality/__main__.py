"""`python -m bench.baseline_quality RUN [baseline_quality.KNOB=VALUE]...`: measure a run at its checkpoints."""

import sys
from pathlib import Path

from bench.baseline_quality.afterwards import measure_saved
from bench.dialect import ConfigError


def main() -> None:
    """Entry point."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m bench.baseline_quality RUN [baseline_quality.KNOB=VALUE]...")
    try:
        measured = measure_saved(Path(sys.argv[1]), sys.argv[2:])
    except ConfigError as error:
        print("\n".join(error.lines), file=sys.stderr)
        sys.exit(2)
    for update, lines in measured.items():
        print(f"update {update}: {lines} tokens")


if __name__ == "__main__":
    main()
