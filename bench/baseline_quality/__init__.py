"""Baseline quality: prefixes of sampled completions, their true values by continuation, and how far a baseline is off.

A rollout is measured before its first update, by streams of random numbers of its own: training is the same, bit for
bit, whether it is measured or not. `docs/baseline_quality.md` has the estimands; the page is `reports.baseline_quality`.
"""
