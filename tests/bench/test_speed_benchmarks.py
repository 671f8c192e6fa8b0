"""The scripts that measure speed run at their smallest size and say what they promise. No speed is asked for."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def said(root: Path, script: str, *arguments: str) -> str:
    """What a script prints."""
    command = [sys.executable, str(root / "benchmarks" / script), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def test_the_machine_is_measured_for_each_number_of_threads(root: Path, tmp_path: Path) -> None:
    sizes = ("--sides", "64", "--sizes", "1", "--rows", "8", "--tokens", "4", "--repeats", "2", "--threads", "1", "2")
    text = said(root, "machine.py", *sizes, "--json", str(tmp_path / "limits.json"))
    assert text.startswith("machine: ")
    for row in ("product float32, 64 x 64, GFLOP/s", "copy, arrays of 1 MB, GB/s", "operation on one number, µs"):
        assert re.search(rf"^\| {re.escape(row)} \| [\d,.]+ \| [\d,.]+ \|$", text, re.MULTILINE), row
    # Tied embeddings: the vocabulary head is a product too, 15 symbols wide.
    assert "tiny: 853,888 weights are multiplied with, 76 operations a step" in text
    assert 4 * (4 * 128 * 128 + 3 * 128 * 384) + 15 * 128 == 853_888
    record = json.loads((tmp_path / "limits.json").read_text())
    assert [each["threads"] for each in record["limits"]] == [1, 2]
    decode, prefill = record["model"][:2]
    assert (decode["rows"], prefill["rows"]) == (8, 32)
    assert decode["flop"] == 2 * 853_888 * 8
    assert decode["roof_seconds"] == max(decode["roof"].values()) > 0


def test_engines_take_turns_and_are_compared_with_the_roof(root: Path, tmp_path: Path) -> None:
    small = ("--model", "random", "--batches", "4", "8", "--group", "4", "--tokens", "3", "--repeats", "2")
    text = said(root, "rollout.py", *small, "--threads", "1", "--json", str(tmp_path / "rates.json"))
    number = r"[\d,.]+"
    for rows in (4, 8):
        for ends, engine in ((ends, engine) for ends in ("natural", "never") for engine in ("generate", "ours")):
            row = rf"^\| {rows} \| {ends} \| {engine} \| {number} \| {number} to {number} \| .* \| \d+% \|$"
            assert re.search(row, text, re.MULTILINE), (rows, ends, engine)
    for engine in ("trl", "vllm"):
        assert re.search(rf"^\| 8 \| natural \| {engine} \| ({number} \||not installed)", text, re.MULTILINE), engine
    assert re.search(r"^\| matrix products \| [\d.]+ \| \d+% \| \d+ \|$", text, re.MULTILINE)
    assert re.search(r"^of [\d.]+ ms the prompts and the first token take [\d.]+ ms; the roof is ", text, re.MULTILINE)
    assert re.search(r"^ratio to generate\(\): \d+\.\d\d$", text, re.MULTILINE)
    assert re.search(r"^share of the decode roof: \d+%$", text, re.MULTILINE)
    rows = json.loads((tmp_path / "rates.json").read_text())["rows"]
    never = [each for each in rows if each["ends"] == "never"]
    for each in never:  # an end token that cannot come: every completion is as long as it may be
        tokens = [rate * seconds for rate, seconds in zip(each["rates"], each["seconds"], strict=True)]
        assert tokens == pytest.approx([3 * each["rows"]] * 2), each["engine"]


def test_two_trials_run_in_both_ways(root: Path, tmp_path: Path) -> None:
    small = (
        "warm_start=null", "reward.source=random", f"output.cache={tmp_path}", "budget.updates=2",
        "rollout.prompts=2", "rollout.group_size=8",
        "validation.every=0", "evaluation.problems=1", "evaluation.samples=1", "evaluation.ks=[1]",
        "evaluation.start=false",
    )  # fmt: skip
    text = said(root, "jobs.py", "--repeats", "1", *small)
    for way in ("side by side, 1 thread each", "one after another, 2 threads each"):
        assert re.search(rf"^\| {way} \| [\d.]+ \| [\d.]+ \| [\d.]+ \| [\d,]+ \|$", text, re.MULTILINE), way
    assert re.search(r"^ratio of trials an hour: \d+\.\d\d$", text, re.MULTILINE)
