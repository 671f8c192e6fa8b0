"""The kit's one entry: from a target on the command line to results as plain data."""

from typing import Any

from bench import catalog
from bench.conformance.adapter import Implementation, Mistake, load
from bench.conformance.checks import check
from bench.conformance.ours import ours
from bench.conformance.table import plain
from bench.conformance.trl_stub import TRL_VERSION


def conformance(target: str | None) -> dict[str, Any]:
    """Check a target and give the results.

    Args:
        target: None for all our presets, the name of one, `trl`, or `package.module:function`.

    Raises:
        Mistake: there is no such target, or it breaks the contract.
    """
    return plain([check(one) for one in _implementations(target)])


def _implementations(target: str | None) -> list[Implementation]:
    presets = catalog.names("algorithms")
    if target is None:
        return [ours(name) for name in presets]
    if target in presets:
        return [ours(target)]
    if target == "trl":
        from bench.conformance import trl

        try:
            return trl.implementations()
        except ImportError as error:
            raise Mistake(f"trl: {error}; pip install trl=={TRL_VERSION}") from None
    if ":" in target:
        return [load(target)]
    near = catalog.nearest(target, [*presets, "trl"])
    hint = f"did you mean {near}? " if near else ""
    raise Mistake(f"{target}: {hint}give package.module:function, trl, or one of our presets ({', '.join(presets)})")
