"""What a reader must know beside an accuracy: sentences from an evaluation's manifest, for the terminal and reports."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from bench.evaluation.checks import MAX_EXPECTED_GUESSES, guess_flag

TRUNCATED_RATE = 0.1
"""Share of completions cut at their budget above which an accuracy is in part a measure of the budget."""
DUPLICATE_RATE = 0.2
"""Share of completions equal to an earlier one of their problem above which n samples are clearly fewer."""


def cautions(manifest: Mapping[str, Any]) -> Iterator[str]:
    """One sentence for each thing that makes the numbers say less than they seem; facts that are absent are skipped."""
    samples, ks = manifest.get("samples") or 0, manifest.get("ks") or [1]
    if manifest.get("identical"):
        yield "samples are identical, pass@k equals pass@1: raise the temperature, or read K = 1 alone"
    elif (manifest.get("duplicate_rate") or 0) > DUPLICATE_RATE:
        yield f"{manifest['duplicate_rate']:.0%} of the completions equal an earlier one of the same problem"
    if (manifest.get("truncated_rate") or 0) > TRUNCATED_RATE:
        budget = manifest.get("max_completion_tokens")
        yield f"{manifest['truncated_rate']:.0%} of the completions were cut at {budget} tokens and count as they stand"
    timed_out = round((manifest.get("timed_out_rate") or 0) * (manifest.get("num_samples") or 0))
    if timed_out:
        yield f"the grader ran out of time on {timed_out} completions, which count as wrong"
    if manifest.get("num_unscorable"):
        yield f"{manifest['num_unscorable']} completions could not be graded and are left out"
    # One sample that is repeated is one guess.
    rate, largest = manifest.get("guess_rate"), 1 if manifest.get("identical") else max(ks)
    if rate and math.isfinite(rate) and guess_flag(rate, largest):
        hits = f"{largest * rate:.2g} hits are expected of blind guesses at K = {largest}"
        yield f"{hits} (more than {MAX_EXPECTED_GUESSES:g}), so read Pass@K of small K, or Cover@tau"
    if largest > 1 and samples < 4 * largest:
        yield f"{samples} samples are fewer than 4 x {largest}, so the largest K are noisy"
