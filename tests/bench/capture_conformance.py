"""Store the oracle's golden numbers: `python tests/bench/capture_conformance.py`, only when the examples change.

The numbers stand beside the code so that the oracle and the objectives cannot drift away together.
"""

import json
from pathlib import Path
from typing import Any

from bench import catalog
from bench.conformance import oracle_credit
from bench.conformance.adapter import resolve_claims
from bench.conformance.examples import example, golden

PATH = Path(__file__).parent / "golden" / "conformance.json"
REWARD, GROUP = [1, 0, 0.35, 0.35, 0.2, 1, 0.35, 0.35, 0.35, 0.35, 0.35, 0.0], [0] * 6 + [1] * 6


def numbers() -> dict[str, Any]:
    """By preset: the loss of the example, its gradient, and the advantages of two groups; 12 digits of each."""
    found: dict[str, Any] = {}
    for name in catalog.names("algorithms"):
        claims, _ = resolve_claims(name)
        outcome = golden(claims, example(claims))
        found[name] = {"value": rounded(outcome.value), "gradient": rounded(outcome.gradient.tolist())}
        if claims["kind"] == "policy_gradient":
            found[name]["advantages"] = rounded(oracle_credit.advantages(claims["advantage"], REWARD, GROUP))
    return found


def rounded(value: Any) -> Any:
    """Twelve significant digits of every number."""
    return [rounded(item) for item in value] if isinstance(value, list) else float(f"{value:.12g}")


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    rows = [f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in numbers().items()]
    PATH.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
