"""The command line: quick help, tables that can be read, runs that can be read back, mistakes without a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import catalog
from bench.cli import app
from bench.dialect import parse_yaml
from bench.loading import build_run, load_run

_YAML = """
algorithm: dapo
task: chain_sum
rollout: {prompts: 8, group_size: 4, updates_per_rollout: 2, max_completion_tokens: 20}
optimizer: {lr: 1e-6, microbatch_sequences: 16}
budget: {updates: 8}
"""

ENGINES = ["builtin", "vllm"]


@pytest.fixture
def run_yaml(tmp_path: Path) -> str:
    path = tmp_path / "run.yaml"
    path.write_text(_YAML)
    return str(path)


def _bench(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def _modules_after(root: Path, *arguments: str) -> tuple[int, str, set[str]]:
    """Exit status, stderr and loaded modules of a `bench` command in a process of its own."""
    code = (
        "import sys\nfrom bench.cli import main\nsys.argv = ['bench', *sys.argv[1:]]\n"
        "try:\n    main()\nfinally:\n    print('modules:', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr, set(done.stdout.rpartition("modules:")[2].split())


@pytest.mark.parametrize("argument", ["--help", "list"])
def test_help_and_list_wait_for_no_heavy_library(argument: str, root: Path) -> None:
    status, _, modules = _modules_after(root, argument)
    assert status == 0
    assert "bench.cli" in modules
    assert not {"torch", "transformers", "numpy", "datasets", "mlflow", "algorithms", "tasks"} & modules


def test_a_mistake_ends_before_any_model_library_is_loaded(root: Path, run_yaml: str) -> None:
    status, stderr, modules = _modules_after(root, "run", run_yaml, "learning_rat=1", "num-epochs=2")
    lines = stderr.splitlines()
    assert status == 2
    assert [line.partition(",")[0] for line in lines] == ["learning_rat: 1 given", "num-epochs: 2 given"]
    assert "did you mean optimizer.lr?" in lines[0]
    assert "did you mean rollout.epochs?" in lines[1]
    assert not {"transformers", "datasets", "mlflow", "bench.train"} & modules


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["show", "seed"], "seed: there is no such file; a knob is written key=value"),
        (["show", "a.yaml", "b.yaml"], "a.yaml b.yaml: give one file; a knob is written key=value"),
        (["run", "nowhere.yaml"], "nowhere.yaml: there is no such file; a knob is written key=value"),
        (
            ["diff", "gropo", "dapo"],
            "gropo: there is no such file, and there is no algorithm of that name; did you mean grpo?",
        ),
        (["prepare", "nowhere.yaml"], "nowhere.yaml: cannot be read: No such file or directory"),
    ],
)
def test_mistakes_go_to_stderr_with_status_2(arguments: list[str], line: str) -> None:
    status, stdout, stderr = _bench(*arguments)
    assert (status, stdout) == (2, "")
    assert stderr.startswith(line)
    assert len(stderr.splitlines()) == 1


def test_list_names_every_file_with_its_title() -> None:
    status, stdout, _ = _bench("list")
    lines = stdout.splitlines()
    assert status == 0
    assert len(lines) == 1 + sum(len(catalog.names(kind)) for kind in ("algorithms", "tasks", "reports")) + len(ENGINES)
    assert [line.split()[1] for line in lines if line.startswith("engine ")] == ENGINES
    entry = next(entry for entry in catalog.entries("algorithms") if entry.name == "dapo")
    assert [line.split(maxsplit=2) for line in lines if " dapo " in line] == [["algorithm", "dapo", entry.title]]


def test_show_prints_a_run_that_reads_back(run_yaml: str, tmp_path: Path) -> None:
    status, stdout, _ = _bench("show", run_yaml, "objective.surrogate.high=0.3", "seed=4")
    run = load_run(Path(run_yaml), ["objective.surrogate.high=0.3", "seed=4"])
    assert status == 0
    assert parse_yaml(stdout, "test") == run.dump()
    (tmp_path / "shown.yaml").write_text(stdout)
    assert load_run(tmp_path / "shown.yaml") == run
    lines = stdout.splitlines()
    assert lines[0].startswith(f"# run {run.id}: DAPO")
    assert lines[1] == "# needs: groups"
    preset = catalog.load_preset("dapo")
    surrogate = next(line for line in lines if line.startswith("# surrogate"))
    assert run.objective.formula()["surrogate"] in surrogate
    assert surrogate.endswith(preset.source("surrogate"))


def test_diff_of_two_algorithms_is_what_turns_one_into_the_other() -> None:
    status, stdout, _ = _bench("diff", "grpo", "dapo")
    assert status == 0
    rows = {line.split()[0]: line for line in stdout.splitlines()[1:]}
    assert rows["objective.surrogate.high"].split()[1:3] == ["0.2", "0.28"]
    assert rows["objective.surrogate.high"].endswith(catalog.load_preset("dapo").source("surrogate.high"))
    assert rows["objective.penalty.coefficient"].split()[1:3] == ["0.04", "-"]
    assert "objective.surrogate.low" not in rows
    assert "objective.value.kind" not in rows
    # Every row that DAPO has, put on top of GRPO, gives DAPO.
    knobs = {knob: line.split()[2] for knob, line in rows.items()}
    knobs = {knob: parse_yaml(value, knob) for knob, value in knobs.items() if value != "-"}
    from bench.loading import nested

    plain = parse_yaml(_YAML, "test")
    assert isinstance(plain, dict)
    turned = build_run({**plain, "algorithm": "grpo"}, nested(knobs))
    assert turned.objective == build_run(plain).objective


def test_diff_of_runs_says_what_the_run_changed(run_yaml: str, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(_YAML.replace("updates: 8", "updates: 10") + "objective: {surrogate: {high: 0.3}}\n")
    rows = [line.split()[:3] for line in _bench("diff", run_yaml, str(other))[1].splitlines()[1:]]
    assert rows == [["objective.surrogate.high", "0.28", "0.3"], ["budget.updates", "8", "10"]]
    against_preset = _bench("diff", str(other), "dapo")[1].splitlines()
    assert len(against_preset) == 2
    assert against_preset[1].split()[:4] == ["objective.surrogate.high", "0.3", "0.28", "this"]
    assert _bench("diff", "dapo", run_yaml)[1] == f"dapo and {run_yaml} do not differ\n"


def test_diff_reads_a_runs_folder(run_yaml: str, tmp_path: Path) -> None:
    """By the run.yaml in it, also where another folder has the name of an algorithm; a folder without one is no run."""
    folder = tmp_path / "runs" / "0123456789ab"
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(_YAML.replace("updates: 8", "updates: 10"))
    status, stdout, _ = _bench("diff", run_yaml, str(folder))
    assert (status, [line.split() for line in stdout.splitlines()[1:]]) == (0, [["budget.updates", "8", "10"]])
    status, _, stderr = _bench("diff", "grpo", str(tmp_path / "runs"))
    assert (status, stderr.partition(",")[0]) == (2, f"{tmp_path / 'runs'}: there is no such file")


def test_a_reader_that_stops_early_is_no_mistake(root: Path) -> None:
    """`bench list | head -1` ends without a word on stderr, and not with the status of a mistake."""
    command = [sys.executable, "-m", "bench.cli", "show", "docs/run.yaml"]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1
