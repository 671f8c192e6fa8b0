"""Baseline quality: prefixes of sampled completions, their true values by continuation, and how far a baseline is off.

A rollout is measured before its first update, by streams of random numbers of its own: training is the same, bit for
bit, whether it is measured or not. `docs/baseline_quality.md` says what is estimated; the page is made by
`reports.baseline_quality`.
"""
