"""The documentation says what the code and the stored results say: generated parts are fresh, numbers agree."""

import csv
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from algorithms.axes.knobs import kind_of, knobs_of
from bench import catalog
from bench.loading import load_run


@pytest.fixture(scope="module")
def builder(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_build", root / "docs/build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_metrics_is_the_glossary(root: Path, builder: ModuleType) -> None:
    assert (root / "docs/metrics.md").read_text() == builder.metrics_page(), "run: make docs"


def test_the_readme_is_short_and_its_links_lead_somewhere(root: Path) -> None:
    text = (root / "README.md").read_text()
    assert len(text.splitlines()) <= 250
    for page in (root / "README.md", root / "docs/index.md", root / "docs/log.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_page_of_objectives_is_the_catalog(root: Path, builder: ModuleType) -> None:
    page = (root / "docs/objectives.md").read_text()
    assert page == builder.objectives_page(), "run: python docs/build.py"
    assert all(f"\n## {name}\n" in page for name in catalog.names("algorithms"))


def test_the_table_of_objectives_names_every_component_of_the_quickstart(root: Path) -> None:
    text = (root / "README.md").read_text()
    part = text[text.index("<!-- generated:objectives -->") :]
    rows = part[: part.index("<!-- /generated -->")].splitlines()
    for name in ("ppo", "grpo", "dr_grpo", "dapo", "dpo"):
        preset = catalog.load_preset(name)
        (row,) = [row for row in rows if row.startswith(f"| {preset.title.partition(':')[0]} |")]
        named = {axis: part for axis, part in knobs_of(preset.objective).items() if axis in preset.sources}
        for axis, component in named.items():
            assert kind_of(component).replace("_", " ") in row, f"{name}: {axis} is stale, run: make docs"


def test_the_printed_results_are_the_stored_ones(root: Path) -> None:
    text = (root / "README.md").read_text()
    part = text[text.index("<!-- generated:results -->") :]
    rows = {
        cells[1].strip(): cells
        for line in part[: part.index("<!-- /generated -->")].splitlines()
        if len(cells := line.split("|")) > 3
    }
    with (root / "results/quickstart/results_chain_sum.csv").open() as file:
        stored = [record for record in csv.DictReader(file) if record["measure"] == "pass@1"]
    assert len(stored) == 6
    for record in stored:
        assert f"{float(record['mean']):.3f}" in "|".join(rows[record["arm"]]), record["arm"]


def test_the_example_run_is_valid(root: Path) -> None:
    """What the README tells a newcomer to run, its comments' alternatives included."""
    path = root / "docs/run.yaml"
    assert load_run(path).algorithm == "grpo"
    load_run(path, ["algorithm=dapo", "seed=1", "objective.surrogate.high=0.3"])
    load_run(path, ["evaluation.start_prompts=[{style: few_shot, shots: 2}]"])
    load_run(path, ["reward.noise.false_positive=0.2", "reward.noise.false_negative=0.2"])
