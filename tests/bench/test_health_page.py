"""docs/health.md explains every question under its name and holds the thresholds in force."""

import importlib.util
import re
from pathlib import Path

from bench.health import QUESTIONS
from bench.health_series import CRITICAL
from bench.thresholds import THRESHOLDS, at


def test_the_page_has_a_heading_for_each_question_with_its_threshold(root: Path) -> None:
    page = (root / "docs/health.md").read_text(encoding="utf-8")
    parts = dict(re.findall(r"^## (\w+)\n\n(.*?)(?=\n## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert [question.name for question in QUESTIONS] == [name for name in parts if name.islower()]
    limits = {"all_right": ("flat_groups", "solved"), "all_wrong": ("flat_groups",), "tied": ("flat_groups",)}
    limits |= {"entropy": ("entropy_collapse",), "kl": ("kl_far", "kl_near"), "longer_wrong": ("length_climb",)}
    limits |= {"critic": ("critic_explains",), "pairs": ("pairs_told_apart",)}
    for question in QUESTIONS:
        text = parts[question.name]
        assert text.startswith("*")
        assert "*What to do.*" in text
        assert question.metric in text or question.name == "longer_right"
        for name in limits.get(question.name, ()):
            assert f"{at(name):g}".removeprefix("0") in text, (question.name, name)
    assert f"{CRITICAL:g} times" in page


def test_the_table_of_thresholds_is_the_code(root: Path) -> None:
    spec = importlib.util.spec_from_file_location("docs_build_for_health", root / "docs/build.py")
    assert spec is not None
    assert spec.loader is not None
    builder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(builder)
    page = (root / "docs/health.md").read_text(encoding="utf-8")
    assert page == builder.health_page(page), "run: python docs/build.py"
    assert all(f"| {name.replace('_', ' ')} | {one.value:g} |" in page for name, one in THRESHOLDS.items())
