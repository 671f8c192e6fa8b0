"""The estimators' benchmark runs, and its estimates agree with the truth that it knows."""

import importlib.util
import re
from pathlib import Path

import pytest


@pytest.mark.slow
def test_estimates_of_drawn_data_agree_with_the_truth(root: Path, monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location("benchmark_of_estimators", root / "benchmarks/estimators.py")
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    monkeypatch.setattr(benchmark, "PROBLEMS", 150)
    monkeypatch.setattr(benchmark, "SAMPLES", 96)
    for seed, population in enumerate(benchmark.POPULATIONS):
        cells = benchmark.row(population, 100 + seed).split("|")
        assert cells[1].strip() == population.name
        for cell in cells[-3:-1]:
            deviation, error = map(float, re.findall(r"[-+]?\d+\.\d+", cell))
            assert abs(deviation) <= 4.5 * error + 0.02
