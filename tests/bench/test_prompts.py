"""The prompts of a finite data set: none is dropped at an epoch's end, and a run says how many it has not seen."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.config import Run
from bench.loading import build_run, nested
from bench.rollout import PromptStream
from bench.train import execute
from tasks.gsm8k import Gsm8k

MakeRun = Callable[..., Run]


@pytest.fixture
def ten(tmp_path: Path) -> MakeRun:
    """A run on a data set of 10 training problems, 4 a rollout, one update a rollout."""
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [{"question": f"{n}+1?", "answer": f"It is {n + 1}\n#### {n + 1}"} for n in range(11)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    for name in ("gsm8k_train.jsonl", "gsm8k_test.jsonl"):
        (folder / name).write_text(text)
    base: dict[str, Any] = {
        "task": {"name": "gsm8k", "path": str(folder)},
        "model": {"hidden_size": 16, "num_layers": 1, "num_heads": 1, "intermediate_size": 16, "max_positions": 160},
        "reward": {"format": 1.0},
        "rollout": {"prompts": 4, "group_size": 2, "max_completion_tokens": 20},
        "optimizer": {"lr": 1e-3, "microbatch_sequences": 8},
        "evaluation": {"problems": 1, "samples": 1, "start": False},
        "output": {"root": str(tmp_path), "cache": str(tmp_path / "cache")},
        "tracking": {"enabled": False},
    }

    def make(algorithm: str, updates: int, **knobs: Any) -> Run:
        return build_run({"algorithm": algorithm, **base, "budget": {"updates": updates}}, nested(knobs))

    return make


def test_cfg_08_an_epochs_last_prompts_are_carried_into_the_next(ten: MakeRun) -> None:
    """10 prompts, 4 a round: the third round takes the last two and the first two of the next epoch."""
    run = ten("grpo", 3)
    assert isinstance(run.task, Gsm8k)
    stream = PromptStream(run.task, 0, 4)
    ids = [problem.id for index in range(5) for problem in stream.round(index)]
    assert len(ids) == 20, "no round is short"
    assert len(set(ids[:10])) == 10
    assert Counter(ids) == dict.fromkeys(ids[:10], 2), "two epochs, each prompt once in each"
    assert ids[:10] != ids[10:], "another order"


def test_cfg_08_prompts_seen_and_unseen_are_logged(ten: MakeRun, tmp_path: Path) -> None:
    assert execute(ten("grpo", 4), tmp_path / "run").state == "finished"
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [(line["prompts/seen"], line["prompts/unseen"]) for line in lines] == [(4, 6), (8, 2), (10, 0), (10, 0)]


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_what_is_sampled_or_read_once_is_logged_once(algorithm: str, ten: MakeRun, tmp_path: Path) -> None:
    """Offline objectives go through the same prompts before their first update: 2 rounds are 8 of 10."""
    knobs: dict[str, Any] = {
        "sft": {"reward.format": 0.0},
        "dpo": {"objective.pairing.require_termination": False},
    }[algorithm]
    assert execute(ten(algorithm, 2, **knobs), tmp_path / "run").state == "finished"
    first, second = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert (first["prompts/seen"], first["prompts/unseen"]) == (8, 2)
    assert "prompts/seen" not in second


def test_a_task_that_makes_its_problems_has_none_unseen() -> None:
    from tasks.chain_sum import ChainSum

    assert PromptStream(ChainSum(), 0, 4).coverage(3) == {}
