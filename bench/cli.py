"""The command line: the one place that joins the packages, each imported only by the command that needs it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench import catalog
from bench.console import columns as _columns
from bench.console import print_table as _print_table
from bench.dialect import ConfigError, to_yaml

if TYPE_CHECKING:
    from bench.config import Run

app = typer.Typer(
    name="bench",
    help="Compare RL objectives for language models. Knobs are written key=value, such as optimizer.lr=1e-4.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

RunArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN.YAML] [KEY=VALUE]...", help="A run's file and knobs that differ from it."),
]


def main() -> None:
    """Entry point of the `bench` command."""
    app()


@app.command("list")
def list_() -> None:
    """List algorithms, tasks, reports and engines."""
    from bench.config_compute import engine_titles

    kinds: tuple[catalog.Kind, ...] = ("algorithms", "tasks", "reports")
    rows = [[kind[:-1], entry.name, entry.title] for kind in kinds for entry in catalog.entries(kind)]
    _print_table(["kind", "name", "title"], rows + [["engine", name, title] for name, title in engine_titles().items()])


@app.command()
def show(arguments: RunArguments = None) -> None:
    """Print a run with every knob resolved, its id, what it needs and its formula. The output is itself a run file."""
    with _mistakes_on_stderr():
        from bench.loading import engine_source

        run = _run_from(arguments or [])
        preset = catalog.load_preset(run.algorithm)
        needs = run.objective.needs
        asked = {"critic": needs.critic, "reference": needs.reference, "groups": needs.groups}
        typer.echo(f"# run {run.id}: {preset.title}")
        typer.echo(
            f"# needs: {', '.join(name for name, needed in asked.items() if needed) or 'nothing but the policy'}"
        )
        typer.echo("#")
        formula = run.formula()
        rows = [[axis, line, engine_source(run, axis) or preset.source(axis)] for axis, line in formula.items()]
        for line in _columns(["axis", "formula", "source of the preset"], rows):
            typer.echo(f"# {line}")
        typer.echo(f"\n{to_yaml(run.dump())}", nl=False)


@app.command()
def diff(
    first: Annotated[str, typer.Argument(help="An algorithm, or a run's file or folder.")],
    second: Annotated[str, typer.Argument(help="Another one.")],
) -> None:
    """Print the knobs in which two algorithms or two runs differ, each with its source."""
    with _mistakes_on_stderr():
        from bench.sides import side

        left, right = side(first), side(second)
        knobs = [*left.knobs, *(knob for knob in right.knobs if knob not in left.knobs)]
        if left.is_preset or right.is_preset:
            knobs = [knob for knob in knobs if knob.startswith("objective.")]
        sections = list(dict.fromkeys(knob.rpartition(".")[0] for knob in knobs))
        rows = [
            [knob, left.shown(knob), right.shown(knob), left.source(knob), right.source(knob)]
            for knob in sorted(knobs, key=lambda knob: sections.index(knob.rpartition(".")[0]))
            if left.shown(knob) != right.shown(knob)
        ]
        if rows:
            _print_table(["knob", first, second, f"source of {first}", f"source of {second}"], rows)
        else:
            typer.echo(f"{first} and {second} do not differ")


@app.command()
def run(
    arguments: RunArguments = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes that share the run: parallel.processes.")
    ] = None,
) -> None:
    """Train and evaluate one run; started again, it resumes."""
    with _mistakes_on_stderr():
        given = [] if processes is None else [f"parallel.processes={processes}"]
        config = _run_from([*(arguments or []), *given])
        from bench.account import account
        from bench.engines import refuse_missing
        from bench.launch import launch, leave, membership, take_part
        from bench.origin import placed
        from bench.store import read_run, read_status

        config, member = membership(config)
        refuse_missing(config)
        config, directory = placed(config, arguments or [])
        if member is not None and (member.rank > 0 or member.by_us):
            take_part(config, directory, member)
        try:
            with _alone(directory):
                if config.parallel.processes > 1 and member is None:
                    launch(config, directory)
                    status = read_status(directory)
                else:
                    from bench.train import execute

                    status = execute(config, directory)
        except _Busy:
            raise ConfigError([f"{directory}: another process is running this run"]) from None
        for line in account(read_run(directory), status):
            typer.echo(line)
        if member is not None:
            leave(status.exit_status)
        raise typer.Exit(status.exit_status)


@app.command()
def sweep(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.YAML")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Knobs of every run.")] = None,
    go: Annotated[bool, typer.Option("--go", help="Start it; without this, print the plan.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs side by side, each in its own process; by default as many as the cores carry."),
    ] = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop after the first run that does not finish.")
    ] = False,
) -> None:
    """Print a sweep's plan and what is done of it, or run what is left. Running it again is the resume."""
    from rich.console import Console

    from sweeps.runner import Options, run_sweep

    options = Options(jobs=jobs, fail_fast=fail_fast)
    raise typer.Exit(run_sweep(spec, overrides or [], go=go, options=options, console=Console()))


@app.command()
def prepare(
    path: Annotated[Path, typer.Argument(metavar="SPEC_OR_RUN.YAML")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
) -> None:
    """Make what all runs of a sweep share: tracker, warm start, evaluation of the starting model, reward model."""
    with _mistakes_on_stderr():
        from bench.loading import load_run, read_yaml
        from sweeps.grid import SECTIONS, load_sweep

        is_sweep = not set(SECTIONS).isdisjoint(read_yaml(path))
        texts = overrides or []
        runs = [trial.run for trial in load_sweep(path, texts).trials] if is_sweep else [load_run(path, texts)]
        from bench.engines import EngineFailed, EngineMismatch
        from bench.evaluations import prepare as prepare_
        from bench.models import ModelUnavailable
        from bench.prepare import PreparationFailed

        try:
            prepare_(runs)
        except ModelUnavailable as error:
            raise ConfigError([str(error)]) from None
        except (PreparationFailed, EngineFailed, EngineMismatch) as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(1) from None


@app.command()
def evaluate(
    target: Annotated[
        str, typer.Argument(metavar="RUN_OR_MODEL", help="A run's folder, a model's folder or a hub name.")
    ],
    task: Annotated[list[str] | None, typer.Option(help="Task to evaluate on; may be repeated.")] = None,
    data: Annotated[str | None, typer.Option(help="Folder or file of the task's data; the hub by default.")] = None,
    knob: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Knob of the task.")] = None,
    split: Annotated[str, typer.Option(help="test, validation or train.")] = "test",
    prompt: Annotated[list[str] | None, typer.Option(help="task, question or few_shot:N; may be repeated.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Completions of each problem.")] = None,
    problems: Annotated[int | None, typer.Option(min=1, help="Problems of the split.")] = None,
    k: Annotated[list[int] | None, typer.Option(min=1, help="K of Pass@K and Maj@K; may be repeated.")] = None,
    temperature: Annotated[
        list[float] | None, typer.Option(min=0, help="0 is greedy; may be repeated, for a grid.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(min=1e-6, max=1, help="Nucleus sampling.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest completion, in tokens.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    gguf_file: Annotated[str | None, typer.Option(help="Name of a GGUF file in the model's folder.")] = None,
    prompt_format: Annotated[str, typer.Option(help="auto, chat or plain.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Folder of the results.")] = None,
) -> None:
    """Sample, grade and estimate Pass@K and Maj@K for a run's final model or any model; again: resume."""
    with _mistakes_on_stderr():
        from bench.evaluate import Request, evaluate_target, table
        from bench.evaluation.cautions import cautions

        if split not in ("train", "validation", "test"):
            raise ConfigError([f"--split: {split} given, must be train, validation or test"])
        answers = evaluate_target(
            Request(
                target=target, tasks=task or [], data=data, knobs=knob or [], split=split, prompts=prompt or [],
                problems=problems, samples=samples, ks=sorted(set(k or [])), temperatures=temperature or [],
                top_p=top_p, max_completion_tokens=max_tokens, seed=seed, gguf_file=gguf_file,
                prompt_format=prompt_format, out=out,
            )
        )  # fmt: skip
        _print_table(*table(answers))
        for answer in answers:
            sizes = f"{answer.manifest['num_problems']} problems, {answer.manifest['samples']} samples each"
            there = ", was there already" if answer.was_there else ""
            typer.echo(f"\n{answer.folder / answer.name}.*: {sizes}{there}")
            for caution in cautions(answer.manifest):
                typer.echo(f"caution: {caution}")


@app.command()
def score(
    completions: Annotated[Path, typer.Argument(metavar="COMPLETIONS.JSONL[.ZST]", help="Stored completions.")],
    task: Annotated[str, typer.Option(help="Task whose grader judges them.")],
    data: Annotated[
        str | None, typer.Option(help="Folder or file of the task's data; by default the file's own gold answers.")
    ] = None,
    knob: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Knob of the task; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results; beside the completions by default.")] = None,
) -> None:
    """Grade stored completions again and print every verdict that changed. Started again, it resumes."""
    with _mistakes_on_stderr():
        from bench.rescore import Request, rescore

        for line in rescore(Request(path=completions, task=task, data=data, knobs=knob or [], out=out)).lines():
            typer.echo(line)


@app.command()
def doctor(
    arguments: RunArguments = None,
    problems: Annotated[
        int | None,
        typer.Option(min=1, help="Problems of each split; by default all of test, 2000 of train."),
    ] = None,
) -> None:
    """Look for what would go wrong with a run before it costs anything. Exit status 1 where a check fails."""
    with _mistakes_on_stderr():
        config = _run_from(arguments or [])
        from shutil import get_terminal_size

        from bench.doctor import doctor as doctor_

        states: list[str] = []
        for check in doctor_(config, problems):
            states.append(check.state)
            for line in check.printed(get_terminal_size((110, 0)).columns):
                typer.echo(line)
        typer.echo(f"\nof {len(states)} checks: warnings {states.count('warn')}, failures {states.count('fail')}")
        raise typer.Exit(1 if "fail" in states else 0)


@app.command()
def gradients(
    path: Annotated[Path, typer.Argument(metavar="SPEC_OR_RUN.YAML")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Knobs of every run; algorithm=a,b,c.")
    ] = None,
    along: Annotated[Path | None, typer.Option(metavar="RUN", help="Measure at this run's checkpoints too.")] = None,
    drift: Annotated[list[int] | None, typer.Option(min=0, help="Steps before measuring; may be repeated.")] = None,
    drift_by: Annotated[str | None, typer.Option(help="Objective that takes the steps; by default the first.")] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all numbers there.")] = None,
) -> None:
    """Compare the gradients of several objectives on one frozen rollout: norm, direction, signal to noise."""
    with _mistakes_on_stderr():
        from bench.contenders import contenders_of
        from sweeps.grid import SECTIONS, load_sweep

        contenders = contenders_of(path, overrides or [], SECTIONS, lambda *sweep: load_sweep(*sweep).trials)
        from bench.gradients import compare, record
        from bench.store import write_json

        points = list(compare(contenders, along=along, drifts=drift or [0], drift_by=drift_by))
        for i, point in enumerate(points):
            typer.echo("\n" * bool(i) + point.heading)
            for header, rows in point.tables():
                typer.echo()
                _print_table(header, rows)
            typer.echo("".join(f"\nskipped: {line}" for line in point.skipped()), nl=bool(point.skipped()))
        if json is not None:
            write_json(json, record(contenders, points))


@app.command()
def report(
    sweep_dir: Annotated[Path, typer.Argument(metavar="SWEEP", help="Folder of run folders.")],
    out: Annotated[Path | None, typer.Option(help="Where the report goes; beside the runs by default.")] = None,
) -> None:
    """Build the report of a sweep from its run folders alone."""
    with _mistakes_on_stderr():
        from reports.build import build

        try:
            built = build(sweep_dir, out)
        except ValueError as error:
            raise ConfigError([str(error)]) from None
        except OSError as error:
            raise ConfigError([error.strerror or str(error)]) from None
        typer.echo(f"{built.summary}\n\n{built.paths[0]}")


@app.command()
def conformance(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[PACKAGE.MODULE:FUNCTION]", help="A loss, or trl, or a preset; by default all presets."
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the results there.")] = None,
) -> None:
    """Check that losses are what they claim to be: ours, TRL's, or anyone's. Exit status 1 where one deviates."""
    with _mistakes_on_stderr():
        from shutil import get_terminal_size

        from bench.conformance import table
        from bench.conformance.run import conformance as conformance_

        results = conformance_(target)
        for header, rows in table.tables(results, get_terminal_size((table.WIDEST, 0)).columns):
            _print_table(header, rows)
            typer.echo()
        typer.echo("\n".join(table.lines(results)))
        if json is not None:
            json.write_text(table.to_json(results), encoding="utf-8")
        raise typer.Exit(0 if table.conforms(results) else 1)


class _Busy(Exception):
    """Another process holds the run."""


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Hold the run's lock, which the system takes back when the process ends, however it ends."""
    from filelock import FileLock, Timeout

    directory.mkdir(parents=True, exist_ok=True)
    lock = FileLock(directory / "run.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise _Busy from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _mistakes_on_stderr() -> Iterator[None]:
    """A user's mistake is one line on stderr and exit status 2, not a traceback."""
    try:
        yield
    except ConfigError as error:
        for line in error.lines:
            typer.echo(line, err=True)
        raise typer.Exit(2) from None
    except BrokenPipeError:
        raise  # the reader, `head` say, has seen enough; click ends quietly
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        typer.echo(f"{error.strerror or error}{where}", err=True)
        raise typer.Exit(2) from None


def _run_from(arguments: Sequence[str]) -> "Run":
    files = [text for text in arguments if "=" not in text]
    if len(files) > 1:
        raise ConfigError([f"{' '.join(files)}: give one file; a knob is written key=value"])
    if files and not Path(files[0]).exists():
        raise ConfigError([f"{files[0]}: there is no such file; a knob is written key=value"])
    from bench.loading import load_run

    return load_run(Path(files[0]) if files else None, [text for text in arguments if "=" in text])


if __name__ == "__main__":
    main()
