"""Labels stay short enough for file names and figures, and still tell every arm apart."""

from pathlib import Path
from typing import Any

import pytest

from bench import store
from reports import build, settings
from reports.parts.arms import arms_of
from reports.parts.figure import Figure
from reports.parts.page import Heading, Notes, slug

WARM = {"max_updates": 2000, "batch_size": 128, "lr": 3e-3, "stop_at_pass_at_1": 0.3, "check_every": 25, "seed": 0}


def change(run: Path, **sections: Any) -> None:
    """Write other values into a run's configuration."""
    (mine,) = [one.run for one in store.read_sweep(run.parent) if one.id == run.name]
    store.write_yaml(run / "run.yaml", {**mine, **sections})


def labels(sweep: Path) -> list[str]:
    return [arm.label for arm in arms_of(store.read_sweep(sweep))]


def test_a_section_that_one_side_lacks_is_one_setting(tmp_path: Path, make_run) -> None:
    first, second = (make_run(tmp_path, "grpo", seed) for seed in (0, 1))
    change(first, warm_start=WARM)
    change(second, warm_start=None)
    assert labels(tmp_path) == ["GRPO (warm_start=none)", "GRPO (warm_start=yes)"]
    # Those that have the section still differ in what stands in it, and only they say so.
    change(make_run(tmp_path, "grpo", 2), warm_start={**WARM, "lr": 0.1})
    assert labels(tmp_path) == [
        "GRPO (warm_start.lr=0.003)",
        "GRPO (warm_start.lr=0.1)",
        "GRPO (warm_start=none)",
    ]


def test_a_component_that_one_side_lacks_goes_by_its_kind(tmp_path: Path, bare_run) -> None:
    for seed, penalty in enumerate((None, {"kind": "k3", "coefficient": 0.1}, {"kind": "k1", "coefficient": 0.1})):
        bare_run(tmp_path, "grpo", seed, {}, objective={"kind": "policy_gradient", "penalty": penalty})
    assert labels(tmp_path) == ["grpo (penalty=k1)", "grpo (penalty=k3)", "grpo (penalty=none)"]


@pytest.mark.slow
def test_runs_that_differ_in_many_ways_have_a_whole_report(tmp_path: Path, make_run) -> None:
    """Labels of hundreds of characters took the figures' axes away and were too long for a file's name."""
    sweep = tmp_path / "single"
    for seed in range(2):
        knobs = {f"knob_number_{i}": seed + i for i in range(9)}
        run = make_run(sweep, "grpo", seed, samples=16)
        change(run, optimizer=knobs, warm_start=WARM if seed else None)
    report = build.build(sweep)
    assert max(len(path.name) for path in report.paths) < 128
    assert len(set(report.paths)) == len(report.paths)
    assert labels(sweep) == ["GRPO (variant 1)", "GRPO (variant 2)"]
    text = report.paths[1].read_text()
    assert "stands in the report under Settings" in text
    assert "- GRPO (variant 1): optimizer.knob_number_0=0, " in text
    assert "- GRPO (variant 2): optimizer.knob_number_0=1, " in text
    assert "optimizer.knob_number_8=9, warm_start=yes." in text


def test_tasks_of_many_settings_have_short_names(tmp_path: Path, bare_run) -> None:
    for seed in range(2):
        task = {"name": "chain_sum", **{f"a_setting_of_the_task_{i}": seed for i in range(9)}}
        bare_run(tmp_path, "grpo", seed, {}, task=task)
    runs = store.read_sweep(tmp_path)
    assert [arm.task for arm in arms_of(runs)] == ["chain_sum (variant 1)", "chain_sum (variant 2)"]
    said = [item for block in settings.render(runs).blocks if isinstance(block, Notes) for item in block.items]
    assert [item.partition(",")[0] for item in said] == [
        "chain_sum (variant 1): a_setting_of_the_task_0=0",
        "chain_sum (variant 2): a_setting_of_the_task_0=1",
    ]


def test_labels_that_print_alike_are_told_apart(tmp_path: Path, bare_run) -> None:
    for seed, value in enumerate(("1", 1)):
        bare_run(tmp_path, "grpo", seed, {}, optimizer={"lr": value})
    assert labels(tmp_path) == ["grpo (variant 1)", "grpo (variant 2)"]


@pytest.mark.slow
def test_long_labels_leave_the_axes_their_size(tmp_path: Path, make_run) -> None:
    for seed in range(6):
        change(make_run(tmp_path, "grpo", seed, samples=16), optimizer={"an_option_of_some_length": f"{seed:015}"})
    assert max(map(len, labels(tmp_path))) > 50
    runs = store.read_sweep(tmp_path)
    for block in (block for page in build.pages_of(runs) for block in page.blocks if isinstance(block, Figure)):
        canvas = block.draw()
        canvas.draw_without_rendering()
        assert all(axes.bbox.width > 80 and axes.bbox.height > 80 for axes in canvas.axes), block.name


def test_names_of_files_are_short_and_distinct() -> None:
    texts = ["a" * 300, "a" * 301, "x" * 80, "x" * 81, "сумма", "разность", "lr=-0.2", "lr=0.2", "Dr. GRPO"]
    names = [slug(text) for text in texts]
    assert len(set(names)) == len(texts)
    assert max(map(len, names)) == 80
    assert names[-1] == "dr_grpo"
    assert all(name.isascii() and name for name in names)


def test_a_page_with_nothing_to_say_is_left_out(tmp_path: Path, make_run) -> None:
    make_run(tmp_path, "grpo", 0)
    change(make_run(tmp_path, "grpo", 1), task={"name": "other"})
    pages = {page.name: page for page in build.pages_of(store.read_sweep(tmp_path))}
    assert "transfer" not in pages
    assert any(isinstance(block, Heading) for block in pages["settings"].blocks)
