"""Checkpoint folders: whole or not there, told apart byte by byte, kept by rule, refused where they are another's."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench import checkpoint, checkpoint_folder, logs, store
from bench.casting import make_cast
from bench.checkpoint_folder import FORMAT, MARKER, NoRoom, complete, newest_whole, prune, whole_folder
from bench.config import Run, TinyModel
from bench.learner import Cast
from bench.loading import ConfigError, change
from bench.memory import MemoryMeter
from bench.models import create_tiny
from bench.origin import origin, refuse_unusable

MakeRun = Callable[..., Run]


def step(directory: Path, update: int, **record: Any) -> Path:
    """A small whole folder in place of a checkpoint."""
    folder = directory / f"step_{update:06d}"
    with whole_folder(folder, record) as partial:
        (partial / "policy").mkdir()
        (partial / "policy/weights").write_bytes(bytes(range(200)))
        (partial / "optimizer").write_bytes(b"moments")
    return folder


def names(folders: list[Path]) -> list[str]:
    return [folder.name for folder in folders]


def cast_of(run: Run) -> Cast:
    assert isinstance(run.model, TinyModel)
    return make_cast(run, create_tiny(run.model, run.task.alphabet, 0))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda f: (f / "policy/weights").write_bytes(b"x"), "policy/weights has 1 bytes instead of 200"),
    "longer": (lambda f: (f / "optimizer").write_bytes(b"moments and more"), "optimizer has 16 bytes instead of 7"),
    "missing": (lambda f: (f / "policy/weights").unlink(), "policy/weights is missing"),
    "flipped": (lambda f: flip(f / "policy/weights"), "the content of policy/weights was changed"),
    "torn marker": (lambda f: (f / MARKER).write_text('{"format": 3, "fil'), f"its {MARKER} cannot be read"),
    "odd marker": (lambda f: (f / MARKER).write_text("[]"), f"its {MARKER} is not one"),
    "edited marker": (lambda f: flip_digit(f / MARKER), f"its {MARKER} was changed"),
    "another format in the marker": (lambda f: other_format(f / MARKER), f"its {MARKER} was changed"),
    "deep marker": (lambda f: (f / MARKER).write_text("[" * 200_000), f"its {MARKER} cannot be read"),
    "no marker": (lambda f: (f / MARKER).unlink(), "it was never finished"),
}


def other_format(marker: Path) -> None:
    marker.write_text(marker.read_text().replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))


def flip_digit(marker: Path) -> None:
    """Still JSON, but of another update."""
    marker.write_text(marker.read_text().replace('"update": 10', '"update": 11'))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_skipped_with_a_word_and_the_older_one_is_used(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newest = step(tmp_path, 9, progress={"update": 9}), step(tmp_path, 10, progress={"update": 10})
    assert next(newest_whole(tmp_path)) == newest
    do, said = DAMAGES[damage]
    do(newest)
    assert next(newest_whole(tmp_path)) == older
    assert f"{newest}: {said}; skipped" in capsys.readouterr().err


def test_checkpoints_are_in_order_of_their_numbers_and_odd_names_are_none(tmp_path: Path) -> None:
    for update in (9, 1_000_000, 10, 999_999):
        step(tmp_path, update)
    for name in ("step_foo", "step_1x2", "step_12", "step_000003"):
        (tmp_path / name).mkdir()
    (tmp_path / "step_000002").write_text("a file")
    expected = ["step_000009", "step_000010", "step_999999", "step_1000000"]
    assert names(complete(tmp_path)) == expected
    checkpoint_folder.clean(tmp_path)
    assert (tmp_path / "step_foo").exists()
    assert not (tmp_path / "step_000003").exists(), "it never got its marker"


def test_the_one_before_stays_until_the_next_is_whole(tmp_path: Path) -> None:
    before = step(tmp_path, 1)

    def half_written() -> None:
        with whole_folder(tmp_path / "step_000002", {}) as partial:
            (partial / "half").write_text("half")
            assert not (tmp_path / "step_000002").exists()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half_written()
    assert names(sorted(tmp_path.iterdir())) == [before.name]
    (tmp_path / ".step_000002.partial").mkdir()
    checkpoint_folder.clean(tmp_path)
    assert names(sorted(tmp_path.iterdir())) == [before.name]


def test_pruning_keeps_the_newest_whole_ones_those_that_stay_and_what_they_share(tmp_path: Path) -> None:
    for update in (2, 4, 6):
        with whole_folder(tmp_path / f"best_{update:06d}", {}):
            pass
    step(tmp_path, 2, stays=True, needs=["best_000002"])
    for update in (4, 6, 8):
        step(tmp_path, update, needs=[f"best_{min(update, 6):06d}"])
    flip(tmp_path / "step_000008" / MARKER)
    prune(tmp_path, 1)
    assert names(complete(tmp_path)) == ["step_000002", "step_000006"]
    assert (tmp_path / "step_000008").exists(), "newer than the newest whole one: it may be looked into"
    assert sorted(path.name for path in tmp_path.glob("best_*")) == ["best_000002", "best_000006"]


def test_a_checkpoint_whose_best_model_is_gone_is_not_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step(tmp_path, 2)
    step(tmp_path, 4, needs=["best_000004"])
    assert next(newest_whole(tmp_path)).name == "step_000002"
    assert "best_000004, which it needs, it was never finished" in capsys.readouterr().err


def test_without_room_nothing_is_written_and_the_older_one_stays(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cast = cast_of(tiny_run("grpo"))
    checkpoint.save(tmp_path, cast, keep=1, extra={})
    cast.progress.update = 2
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(NoRoom, match=r"the checkpoint of update 2 needs [\d,]+ bytes and .* has 1,000 free: free some"):
        checkpoint.save(tmp_path, cast, keep=1, extra={})
    assert names(sorted(tmp_path.iterdir())) == ["step_000000"]


def test_logs_are_cut_back_byte_by_byte_and_a_changed_beginning_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    store.append_jsonl(path, {"update": 1})
    at = logs.position(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"update": 2}\n{"torn')
    assert logs.held(tmp_path, at) is None
    logs.cut_back(tmp_path, at)
    assert path.read_bytes() == b'{"update": 1}\n'
    path.write_bytes(b'{"update": 7}\n')
    assert logs.held(tmp_path, at) == "metrics.jsonl"
    path.unlink()
    assert logs.held(tmp_path, at) == "metrics.jsonl"


def test_a_checkpoint_restores_every_tensor_and_counter_bit_for_bit(tiny_run: MakeRun, tmp_path: Path) -> None:
    """Policy, critic and both optimizers, also before the policy's first step, when its optimizer has no state."""
    run = tiny_run("ppo")
    cast, other = cast_of(run), cast_of(run)
    assert cast.critic is not None
    assert cast.critic_optimizer is not None
    torch.manual_seed(0)
    for parameter in cast.critic.parameters():
        parameter.grad = torch.randn_like(parameter)
    cast.critic_optimizer.step()
    cast.progress.update, cast.progress.trained_tokens = 3, 17
    folder = checkpoint.save(tmp_path, cast, keep=1, extra={"some": [1.5]})
    assert checkpoint.restore(folder, other) == {"some": [1.5]}
    assert other.progress == cast.progress
    assert other.critic is not None
    for mine, theirs in ((cast.policy.network, other.policy.network), (cast.critic, other.critic)):
        assert checkpoint.weights_digest(mine) == checkpoint.weights_digest(theirs)
    assert other.critic_optimizer is not None
    for one, two in (
        (cast.optimizer.state_dict()["state"], other.optimizer.state_dict()["state"]),
        (cast.critic_optimizer.state_dict()["state"], other.critic_optimizer.state_dict()["state"]),
    ):
        assert one.keys() == two.keys()
        assert all(torch.equal(one[i][name], two[i][name]) for i in one for name in one[i])


def test_a_checkpoint_of_another_run_format_or_library_is_refused(tiny_run: MakeRun, tmp_path: Path) -> None:
    run = tiny_run("grpo")
    own, folder = origin(run), tmp_path / "checkpoints/step_000002"
    step(folder.parent, 2, **own)
    refuse_unusable(run, tmp_path)
    step(folder.parent, 2, **{**own, "run": "0123456789ab"})
    with pytest.raises(ConfigError, match=f"is of run 0123456789ab, another configuration than that of {run.id}: move"):
        refuse_unusable(run, tmp_path)
    step(folder.parent, 2, **{**own, "packages": {**own["packages"], "torch": "1.0"}})
    with pytest.raises(ConfigError, match=r"was written with torch 1\.0 \(here .*install that version again, or move"):
        refuse_unusable(run, tmp_path)
    (folder / MARKER).write_text(json.dumps({"format": 1, "progress": {}, "extra": {}}))
    with pytest.raises(ConfigError, match="has format 1, and this version reads and writes 3: finish the run with"):
        refuse_unusable(run, tmp_path)


def test_a_place_for_checkpoints_that_cannot_be_written_or_is_full_is_refused(
    tiny_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run("grpo")
    (tmp_path / "checkpoints").write_text("")
    with pytest.raises(ConfigError, match=r"checkpoints: cannot be written \(File exists\); make it writable, or give"):
        refuse_unusable(run, tmp_path)
    (tmp_path / "checkpoints").unlink()
    (tmp_path / "checkpoints").symlink_to("/proc")
    with pytest.raises(ConfigError, match="checkpoints: cannot be written"):
        refuse_unusable(run, tmp_path)
    (tmp_path / "checkpoints").unlink()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(ConfigError, match="the disk is full: 1,000 bytes are free and 33,554,432 are the least"):
        refuse_unusable(run, tmp_path)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_memory_of_earlier_attempts_counts_where_it_was_higher() -> None:
    meter = MemoryMeter("cpu")
    meter.metering = True
    for phase, size in (("rollout", 10), ("policy_update", 1000)):
        with meter.measure(phase):
            torch.zeros(size)
    own = meter.report()
    before = json.loads(json.dumps(own))
    before["phases"]["rollout"] = {"total": 10**6, "roles": {**own["phases"]["rollout"]["roles"], "rollout": 10**6}}
    before["phases"]["policy_update"]["total"] -= 1
    before |= {"process_rss_bytes": 2**50, "attempts": 2}
    meter.add(before)
    merged = meter.report()
    assert merged["phases"]["rollout"]["total"] == merged["peak"]["allocated_bytes"] == 10**6
    assert merged["phases"]["policy_update"] == own["phases"]["policy_update"]
    assert (merged["process_rss_bytes"], merged["attempts"], merged["gpu_allocated_bytes"]) == (2**50, 3, None)


def test_only_what_shares_memory_is_copied_for_a_checkpoint(tmp_path: Path) -> None:
    """A copy of everything took an optimizer's state once more, on its device."""
    base = torch.arange(6.0)
    views = {"whole": base, "part": base[:3], "turned": torch.ones(2, 3).t()}
    state = {**views, "own": torch.zeros(4), "scalar": torch.tensor(3.0), "none": torch.zeros(0), "no": torch.zeros(0)}
    owned = checkpoint._owned(state)
    assert all(owned[name].data_ptr() == state[name].data_ptr() for name in ("whole", "own", "scalar"))
    save_file(owned, tmp_path / "state.safetensors")
    back = load_file(tmp_path / "state.safetensors")
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_what_can_stay_must_be_written(tiny_run: MakeRun) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint.keep_every: 3 given, must be a multiple .*every = 2, .* as 4"):
        tiny_run("grpo", **{"checkpoint.every": 2, "checkpoint.keep_every": 3})
    with pytest.raises(ConfigError, match=r"checkpoint.keep_every: 3 given, but checkpoint.every is 0"):
        tiny_run("grpo", **{"checkpoint.keep_every": 3})
    assert math.isfinite(tiny_run("grpo", **{"checkpoint.every": 2, "checkpoint.keep_every": 4}).checkpoint.keep)


def test_how_often_a_run_is_saved_is_no_part_of_what_it_is(tiny_run: MakeRun) -> None:
    run = tiny_run("grpo", **{"checkpoint.every": 2})
    assert change(run, {"checkpoint.every": 1, "checkpoint.keep": 3}).id == run.id
    assert change(run, {"seed": 5}).id != run.id
