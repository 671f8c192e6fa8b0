"""How many trials run side by side follows from the cores, their share of time and what a trial takes."""

from pathlib import Path

import pytest

from sweeps.cores import Demand, Jobs, choose_jobs, cpu_quota, usable_cores

ONE, TWO = Demand(processes=1, threads=1), Demand(processes=1, threads=2)


@pytest.mark.parametrize(
    ("cores", "demands", "number"),
    [
        (2, [ONE] * 10, 2),
        (2, [TWO] * 10, 1),
        (2, [Demand(1, 4)] * 10, 1),
        (1, [ONE] * 10, 1),
        (1.5, [ONE] * 10, 1),
        (0.5, [ONE] * 10, 1),
        (2.5, [ONE] * 10, 2),
        (16, [TWO] * 10, 8),
        (16, [ONE] * 3, 3),
        (16, [Demand(2, 2)] * 10, 4),
        (16, [Demand(4, 5)] * 10, 1),
        (16, [ONE, Demand(1, 5), TWO, ONE], 3),
        (16, [Demand(1, 1, gpu=True)] * 10, 1),
        (16, [], 1),
    ],
)
def test_as_many_trials_as_the_cores_carry(cores: float, demands: list[Demand], number: int) -> None:
    jobs = choose_jobs(None, cores, demands)
    assert jobs.number == number
    assert jobs.warning is None


@pytest.mark.parametrize(
    ("asked", "cores", "demands", "crowded"),
    [
        (2, 2, [ONE] * 10, False),
        (3, 2, [ONE] * 10, True),
        (2, 1.5, [ONE] * 10, True),
        (9, 2, [ONE] * 2, False),
        (1, 2, [Demand(1, 4)] * 10, False),
        (2, 4, [Demand(2, 2)] * 10, True),
        (2, 4, [Demand(2, 1)] * 10, False),
        (3, 16, [Demand(1, 1, gpu=True)] * 10, False),
    ],
)
def test_a_number_that_was_asked_for_stands_and_too_many_are_warned_of(
    asked: int, cores: float, demands: list[Demand], crowded: bool
) -> None:
    jobs = choose_jobs(asked, cores, demands)
    assert jobs.number == asked
    assert (jobs.warning is not None) == crowded


def test_the_reason_says_what_was_counted() -> None:
    assert choose_jobs(None, 2, [ONE] * 10) == Jobs(2, "2 at a time: 1 thread each, 2 cores here")
    assert (
        choose_jobs(None, 1.5, [Demand(2, 2)] * 3).reason
        == "1 at a time: 2 processes of 2 threads each, 1.5 cores here"
    )
    assert choose_jobs(None, 8, [ONE] * 3).reason == "3 at a time, no more are left to run: 1 thread each, 8 cores here"
    asked = choose_jobs(4, 2, [ONE] * 10)
    assert asked.reason == "4 at a time, as asked: 1 thread each, 2 cores here"
    assert asked.warning == (
        "--jobs 4: 1 thread each, 2 cores here: they will slow each other down; without --jobs it is 2"
    )


def group(root: Path, lines: str, **files: str) -> Path:
    """A system whose process is in the groups of `lines`, with these files below its control groups."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("cpu_max", "cpu.max").replace("cfs", "cpu.cfs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_quota_is_read_from_both_versions_of_control_groups(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none") is None
    free = group(tmp_path / "free", "0::/\n", cpu_max="max 100000\n")
    assert cpu_quota(free) is None
    second = group(tmp_path / "second", "0::/a/b\n", a__cpu_max="150000 100000\n", a__b__cpu_max="max 100000\n")
    assert cpu_quota(second) == 1.5
    both = {"cpu__job__cfs_quota_us": "50000\n", "cpu__job__cfs_period_us": "20000\n", "cpu__cfs_quota_us": "-1\n"}
    first = group(tmp_path / "first", "9:name=systemd:/\n1:cpu:/job\n0::/\n", **both, cpu__cfs_period_us="100000\n")
    assert cpu_quota(first) == 2.5
    inside = {"cpu,cpuacct__cfs_quota_us": "100000\n", "cpu,cpuacct__cfs_period_us": "100000\n"}
    # In a container the group's own folder is not to be seen: its limit stands at the top.
    assert cpu_quota(group(tmp_path / "inside", "4:cpu,cpuacct:/docker/0a1b\n", **inside)) == 1
    assert 0 < usable_cores() <= 4096


def test_the_plan_names_the_number_and_the_command_leaves_it_to_be_chosen(bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sweeps.runner.usable_cores", lambda: 7.0)  # a trial has 3 threads
    assert bench.run(go=False, jobs=None) == 0
    assert "\n2 at a time: 3 threads each, 7 cores here\n" in bench.said
    assert "warning" not in bench.said
    assert bench.said.endswith(f"start it with: bench sweep {bench.spec} --go\n")
    assert bench.run(go=False, jobs=3) == 0
    assert "\n3 at a time, as asked: 3 threads each, 7 cores here\nwarning: --jobs 3: " in bench.said
    assert bench.run("cross.seed=[0]", jobs=None) == 0
    assert "1 at a time, no more are left to run: 3 threads each, 7 cores here\n" in bench.said
    assert bench.run(go=False, jobs=None) == 0
    assert "2 at a time, no more are left to run" in bench.said
