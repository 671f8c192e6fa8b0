"""The scripts that measure speed run at their smallest size and say what they promise. No speed is asked for."""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.models import create_tiny
from bench.vllm_link import SharedWeights
from tasks.chain_sum import ChainSum


@pytest.fixture
def script(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """`script("machine")`: the module of that name."""
    monkeypatch.syspath_prepend(root / "benchmarks")
    return importlib.import_module


def said(root: Path, script: str, *arguments: str) -> str:
    """What a script prints."""
    command = [sys.executable, str(root / "benchmarks" / script), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root, timeout=600)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def test_roof_reads_a_prompt_once_a_group_and_needs_logits_of_its_last_token_alone(
    script: Callable[[str], Any],
) -> None:
    """Two prompts of 9 and 7 tokens with two completions each, at 1 GB/s."""
    machine = script("machine")
    weights = machine.Weights(shapes=((8, 4, 2),), head=(4, 6), num_layers=1, cached_numbers=10)
    assert weights.numbers == 2 * 8 * 4 + 4 * 6
    found = machine.Limits(torch.get_num_threads(), {}, (machine.Bandwidth(4, 1e9, 1e9),), 0.0)
    passes = machine.rollout_roof(weights, [9, 7], [3, 1, 2, 1], found, repeats=1)
    # One token each before the first step, two of one row before the second, whose prompt alone is read.
    read = [0, 9 + 7 + 2, 9 + 2]
    assert [each.memory for each in passes] == pytest.approx([4e-9 * (weights.numbers + 10 * own) for own in read])
    body, head = (machine.product_seconds(*sizes, found.threads, "float32", 1) for sizes in ((16, 8, 4), (2, 4, 6)))
    assert passes[0].products == pytest.approx(2 * body + head)


def test_operations_are_told_apart_as_the_decode_path_uses_them(script: Callable[[str], Any]) -> None:
    breakdown = script("breakdown")
    kinds = {
        breakdown.ATTENTION: ("bmm", "baddbmm", "baddbmm_", "_scaled_dot_product_flash_attention_for_cpu"),
        "matrix products with weights": ("mm", "addmm", "addmm_"),
        "softmax of attention and of drawing": ("_softmax",),
        "drawing tokens and looking for ends": ("cumsum", "searchsorted"),
        breakdown.REST: ("silu",),
    }
    for kind, names in kinds.items():
        assert {breakdown.kind_of(f"aten::{name}") for name in names} == {kind}


def test_every_repeat_of_vllm_pushes_all_weights(script: Callable[[str], Any]) -> None:
    """As a run does; the samples stay those of the same model."""
    samplers = script("samplers")
    model = create_tiny(samplers.TINY, ChainSum(num_terms=3, num_digits=2).alphabet, 0)
    setting = samplers.Setting(model, [[1, 2, 3]], 2, 2, "natural")
    own, other = samplers.alternating(setting)
    assert own is setting
    held = SharedWeights(own.model.network)
    assert [held.take(each.model.network) for each in (own, own, other, own, other)] == [True, False, True, True, True]
    for mine, near in zip(own.model.network.parameters(), other.model.network.parameters(), strict=True):
        assert bool(((mine != near) | (mine == 0)).all())
        torch.testing.assert_close(mine, near, rtol=2e-6, atol=0)


@pytest.mark.slow
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


@pytest.mark.slow
def test_engines_take_turns_and_are_compared_with_the_roof(root: Path, tmp_path: Path) -> None:
    small = ("--model", "random", "--batches", "4", "8", "--group", "4", "--tokens", "3", "--repeats", "2")
    text = said(root, "rollout.py", *small, "--threads", "1", "--json", str(tmp_path / "rates.json"))
    number = r"[\d,.]+"
    for rows in (4, 8):
        for ends, engine in ((ends, engine) for ends in ("natural", "never") for engine in ("generate", "ours")):
            row = rf"^\| {rows} \| {ends} \| {engine} \| {number} \| {number} to {number} \| .* \| \d+% \|$"
            assert re.search(row, text, re.MULTILINE), (rows, ends, engine)
    # With TRL installed its row is there; what is not installed says so.
    for engine in ("trl", "vllm"):
        assert re.search(rf"^\| 8 \| natural \| {engine} \| ({number} \||not installed)", text, re.MULTILINE), engine
    assert re.search(r"^\| matrix products with weights \| [\d.]+ \| \d+% \| \d+ \|$", text, re.MULTILINE)
    assert re.search(r"^of [\d.]+ ms the prompts and the first token take [\d.]+ ms; the roof is ", text, re.MULTILINE)
    assert re.search(r"^ratio to generate\(\): \d+\.\d\d$", text, re.MULTILINE)
    assert re.search(r"^share of the decode roof: \d+%$", text, re.MULTILINE)
    rows = json.loads((tmp_path / "rates.json").read_text())["rows"]
    never = [each for each in rows if each["ends"] == "never"]
    for each in never:  # an end token that cannot come: every completion is as long as it may be
        tokens = [rate * seconds for rate, seconds in zip(each["rates"], each["seconds"], strict=True)]
        assert tokens == pytest.approx([3 * each["rows"]] * 2), each["engine"]


@pytest.mark.slow
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
