"""The record of where numbers come from, against a real checkout, real optimizers and the running process."""

import platform
import subprocess
from datetime import UTC, datetime

import numpy
import pytest
import torch

from bench.provenance import git_state, optimizer_readback, provenance

COMPUTED = {"parallel": {"processes": 1, "strategy": "ddp"}, "compute": {"autocast": "none"}}


def git(folder, *arguments):
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    git(tmp_path, "init", "--quiet")
    (tmp_path / "grpo.py").write_text("low = 0.2\n")
    (tmp_path / ".gitignore").write_text("runs/\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    return tmp_path


def test_a_clean_checkout_has_its_commit(checkout):
    assert git_state(checkout) == (git(checkout, "rev-parse", "HEAD"), False)


def test_changed_and_new_files_are_dirty_and_ignored_ones_are_not(checkout):
    (checkout / "runs").mkdir()
    (checkout / "runs" / "metrics.jsonl").write_text("{}\n")
    assert git_state(checkout)[1] is False
    (checkout / "gspo.py").write_text("low = 3e-4\n")
    assert git_state(checkout)[1] is True
    (checkout / "gspo.py").unlink()
    (checkout / "grpo.py").write_text("low = 0.1\n")
    assert git_state(checkout)[1] is True


def test_outside_a_checkout_the_commit_is_not_known(tmp_path):
    assert git_state(tmp_path) == (None, None)


def test_another_projects_checkout_around_the_suite_is_not_its_commit(checkout):
    (checkout / "vendored").mkdir()
    assert git_state(checkout / "vendored") == (None, None)


def test_a_checkout_without_a_commit_has_changes_only(tmp_path):
    git(tmp_path, "init", "--quiet")
    (tmp_path / "grpo.py").write_text("low = 0.2\n")
    assert git_state(tmp_path) == (None, True)


def test_the_environment_of_git_does_not_name_another_checkout(checkout, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(checkout / ".git"))
    assert git_state(tmp_path_factory.mktemp("elsewhere")) == (None, None)


def test_the_record_describes_this_process():
    before = datetime.now(UTC).replace(microsecond=0)
    record = provenance({"device": "cpu", "seed": 1, **COMPUTED}, threads=3)
    assert record["packages"]["numpy"] == numpy.__version__
    assert record["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert record["packages"]["vllm"] is None or record["packages"]["vllm"][0].isdigit()
    assert record["python"] == platform.python_version()
    assert (record["device"], record["threads"]) == ("cpu", 3)
    assert record["determinism"] == "bitwise on this CPU with the same threads"
    assert before <= datetime.fromisoformat(record["started_at"]) <= datetime.now(UTC)
    assert provenance({"device": "mps", **COMPUTED}, threads=1)["determinism"] == "recorded, not promised"


@pytest.mark.parametrize("lr", [1e-6, 3e-4])
def test_the_learning_rate_is_read_from_the_optimizer(lr):  # CFG-12
    parameters = [torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(4))]
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.1)
    expected = {"kind": "AdamW", "lr": lr, "betas": (0.9, 0.95), "eps": 1e-5, "weight_decay": 0.1, "num_parameters": 10}
    assert optimizer_readback(optimizer) == expected


def test_a_warm_up_does_not_hide_the_learning_rate():
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=2e-5)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: (update + 1) / 10)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(2e-6)
    assert optimizer_readback(optimizer)["lr"] == 2e-5


def test_groups_that_differ_are_listed_and_absent_settings_are_none():
    matrix, bias = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    groups = [{"params": [matrix], "weight_decay": 0.1}, {"params": [bias], "weight_decay": 0.0}]
    read = optimizer_readback(torch.optim.SGD(groups, lr=0.5))
    assert read == {
        "kind": "SGD",
        "lr": 0.5,
        "betas": None,
        "eps": None,
        "weight_decay": [0.1, 0.0],
        "num_parameters": 6,
    }
