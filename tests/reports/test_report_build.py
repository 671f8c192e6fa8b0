"""The built report is whole, readable offline, and the same bytes wherever it is made from the same run directories."""

import csv
import re
from pathlib import Path

import matplotlib
import pytest
from matplotlib.artist import Artist
from matplotlib.figure import Figure as Canvas
from matplotlib.text import Text

from bench import store
from reports import build, learning_curves, memory, overview, pass_maj, throughput
from reports.parts.figure import STYLE, Figure, save
from reports.parts.page import markdown
from reports.parts.table import Table, to_csv


@pytest.mark.slow
def test_another_process_writes_the_same_bytes(sweep: Path, built: Path):
    """Without this, a set's order, a time or a random id would make every rebuilt report a change."""
    runs = store.read_sweep(sweep)
    pages = build.pages_of(runs)
    assert markdown("Sweep quickstart", pages) == (built / "report.md").read_text()
    for block in (block for page in pages for block in page.blocks):
        if isinstance(block, Table):
            assert to_csv(block.records) == (built / "tables" / f"{block.name}.csv").read_text()
        elif isinstance(block, Figure) and not block.name.startswith("learning"):
            for suffix, content in save(block).items():
                assert content == (built / "figures" / f"{block.name}.{suffix}").read_bytes(), block.name


def test_the_page_needs_no_other_file_and_no_network(built: Path):
    page = (built / "index.html").read_text()
    assert re.findall(r"<(?:script|link|iframe)", page) == []
    assert {source.split(",")[0] for source in re.findall(r'src="([^"]*)', page)} == {"data:image/svg+xml;base64"}
    assert len(re.findall("<img", page)) == len(list((built / "figures").glob("*.svg"))) == 7
    assert str(built) not in page
    for link in re.findall(r'href="([^"#]+)"', page):
        assert (built / link).is_file()


def test_markdown_refers_to_files_that_are_there(built: Path, sweep: Path):
    text = (built / "report.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 15
    assert [link for link in links if not (built / link).is_file()] == []
    assert str(sweep) not in text
    assert "- **Warning:** PPO on chain_sum, seed 1: diverged" in text


def test_csv_and_table_hold_the_same_numbers(built: Path, sweep: Path):
    shown = {cells[0].text: cells for cells in next(iter(overview.render(store.read_sweep(sweep)).blocks[2:3])).rows}
    with (built / "tables" / "results_chain_sum.csv").open() as file:
        records = [record for record in csv.DictReader(file) if record["measure"] == "pass@1"]
    assert [record["arm"] for record in records] == ["Starting model", "DAPO", "DPO", "Dr. GRPO", "GRPO", "PPO"]
    assert all(f"{float(record['mean']):.3f}" == shown[record["arm"]][2].text for record in records)
    # What one seed cannot give is empty, never 0.
    assert [(r["low"], r["high"]) for r in records if r["arm"] == "DPO"] == [("", "")]


def out_of_sight(canvas: Canvas) -> set[Artist]:
    """Labels of ticks beyond the ends of their axis, which matplotlib keeps and does not draw."""
    found: set[Artist] = set()
    for axis in (axis for axes in canvas.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            found |= {tick.label2} if low <= tick.get_loc() <= high else {tick.label1, tick.label2}
    return found


@pytest.mark.slow
def test_no_text_of_a_figure_is_clipped_or_covers_another(sweep: Path):
    runs = store.read_sweep(sweep)
    for module in (learning_curves, memory, pass_maj, throughput):
        for figure in (block for block in module.render(runs).blocks if isinstance(block, Figure)):
            with matplotlib.rc_context(STYLE):
                canvas = figure.draw()
                canvas.draw_without_rendering()
            unseen = out_of_sight(canvas)
            texts = [text for text in canvas.findobj(Text) if text.get_text().strip() and text.get_visible()]
            texts = [text for text in texts if text not in unseen]
            boxes = {text: text.get_window_extent() for text in texts}
            for text, box in boxes.items():
                assert canvas.bbox.x0 <= box.x0 <= box.x1 <= canvas.bbox.x1, (figure.name, text)
                assert canvas.bbox.y0 <= box.y0 <= box.y1 <= canvas.bbox.y1, (figure.name, text)
            pairs = [(a, b) for a in texts for b in texts if a is not b and boxes[a].overlaps(boxes[b])]
            assert pairs == [], figure.name


def test_a_model_that_solves_nothing_has_a_figure(tmp_path: Path, make_run, set_scores):
    """Its axis has a height all the same: without one the plot warns, and a warning is an error here."""
    run = make_run(tmp_path, "grpo", 0)
    for name in ("start", "test"):
        set_scores(run, name, {1: [0.0, 0.0], 2: [0.0, 0.0]})
    figure = next(b for b in pass_maj.render(store.read_sweep(tmp_path)).blocks if isinstance(b, Figure))
    assert save(figure)["svg"]


def test_a_sweep_that_has_only_begun_has_a_report(tmp_path: Path):
    store.set_status(tmp_path / "sweep" / "young", "pending", attempt=0)
    store.write_yaml(tmp_path / "sweep" / "other" / "run.yaml", {"algorithm": "grpo", "task": "t", "seed": 0})
    report = build.build(tmp_path / "sweep")
    assert report.paths[0] == tmp_path / "sweep" / "report" / "index.html"
    assert "0 of 1 (1 pending)" in report.summary
    assert "No evaluation yet." in (tmp_path / "sweep" / "report" / "report.md").read_text()
    # The report stands beside the runs and is not taken for one.
    assert len(store.read_sweep(tmp_path / "sweep")) == 2


def test_foreign_text_cannot_break_the_page(tmp_path: Path):
    error = "a | b <script>alert(1)</script> *x* [y](z) _i_ a_b"
    store.set_status(tmp_path / "run", "failed", attempt=1, error=error)
    build.build(tmp_path, tmp_path / "out")
    assert "<script" not in (tmp_path / "out" / "index.html").read_text()
    line = next(line for line in (tmp_path / "out" / "report.md").read_text().splitlines() if "failed a" in line)
    assert r"a \| b &lt;script>alert(1)&lt;/script> \*x\* [y\](z) \_i\_ a_b" in line


def test_a_report_that_cannot_be_written_says_where(sweep: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write .*file/report/tables"):
        build.build(sweep, tmp_path / "file" / "report")


def test_budget_and_comparison_are_in_the_report(built: Path) -> None:
    for name in ("budget", "comparison"):
        (path,) = (built / "tables").glob(f"{name}_*.csv")
        with path.open() as file:
            assert list(csv.DictReader(file))
