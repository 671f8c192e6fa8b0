"""The house: which package may import which, what is never loaded, and how long a file or a function may be."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from bench.catalog import names

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("algorithms", "tasks", "bench", "sweeps", "reports")
MAY_IMPORT = {
    "algorithms": ("algorithms", "torch", "pydantic", "jaxtyping"),
    "tasks": ("tasks", "pydantic"),
    "bench": ("bench", "algorithms", "tasks"),
    "sweeps": ("sweeps", "bench.config", "bench.endings", "bench.engines", "bench.loading", "bench.store"),
    "reports": ("reports", "bench.evaluation", "bench.statistics", "bench.store"),
}
VERIFIERS = ("math_verify", "latex2sympy2_extended", "sympy", "reasoning_gym")
ENGINE_ONLY = ("transformers", "tokenizers", "accelerate", "datasets", "vllm", "mlflow")
COMPOSITION_ROOT = "bench/cli.py"
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 50


@dataclass(frozen=True)
class Import:
    """One imported name: where it stands, its dotted path, and whether it waits until a function is called."""

    file: str
    line: int
    name: str
    lazy: bool

    def within(self, *packages: str) -> bool:
        return any(self.name == package or self.name.startswith(f"{package}.") for package in packages)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.name}"


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(path: Path) -> Iterator[Import]:
    """Every import of a file: in functions, under TYPE_CHECKING, and by a name given to `import_module` or the like."""
    file, own = path.relative_to(ROOT).as_posix(), path.relative_to(ROOT).parent.parts

    def walk(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            for name in named(child):
                yield Import(file, child.lineno, name, lazy)
            yield from walk(child, lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))

    def named(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*own[: len(own) - node.level + 1], node.module] if node.level else [node.module]
            yield from (".".join([*filter(None, base), alias.name]) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            start = ast.unparse(node.args[0]).lstrip("f").strip("'\"").partition("{")[0].rstrip(".")
            yield from [start] if start.partition(".")[0] in PACKAGES else []

    return walk(tree(path), lazy=False)


def imports_of(package: str) -> list[Import]:
    return [found for path in files(package) for found in imports(path)]


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after `statement`."""
    script = f"import sys\n{statement}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def load_all(package: str) -> str:
    """A statement that imports every module of a package."""
    modules = [path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in files(package)]
    return "import " + ", ".join(module.removesuffix(".__init__") for module in modules)


def test_the_walker_sees_every_way_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "reports" / "parts" / "odd.py"
    path.parent.mkdir(parents=True)
    lines = [
        "import torch.nn as nn",
        "from bench import store",
        "from . import page",
        "from ..table import Table",
        "def late():",
        "    from bench.config import Run",
        "    importlib.import_module(f'sweeps.{name}')",
        "    return len('sweeps.x')",
    ]
    path.write_text("\n".join(lines))
    assert [(found.name, found.lazy) for found in imports(path)] == [
        ("torch.nn", False),
        ("bench.store", False),
        ("reports.parts.page", False),
        ("reports.table.Table", False),
        ("bench.config.Run", True),
        ("sweeps", True),
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_arrows_between_packages(package: str) -> None:
    """Lazy imports count too; `bench/cli.py` alone may import upwards."""
    wrong = [
        str(found)
        for found in imports_of(package)
        if found.within(*PACKAGES) and not found.within(*MAY_IMPORT[package]) and found.file != COMPOSITION_ROOT
    ]
    assert wrong == []


def test_leaves_import_little_else() -> None:
    """`algorithms`: torch, pydantic, jaxtyping. `tasks`: the standard library and pydantic; verifiers only inside
    functions."""
    wrong: list[str] = []
    for package in ("algorithms", "tasks"):
        for found in imports_of(package):
            standard = found.name.partition(".")[0] in sys.stdlib_module_names
            verifier = package == "tasks" and found.lazy and found.within(*VERIFIERS)
            if not (standard or verifier or found.within(*MAY_IMPORT[package])):
                wrong.append(str(found))
    assert wrong == []


def test_only_bench_knows_the_engines() -> None:
    others = [found for package in PACKAGES if package != "bench" for found in imports_of(package)]
    assert [str(found) for found in others if found.within(*ENGINE_ONLY)] == []


def test_the_composition_root_imports_upwards_lazily_and_nothing_imports_it() -> None:
    everything = [found for package in PACKAGES for found in imports_of(package)]
    upwards = [found for found in everything if found.file == COMPOSITION_ROOT and found.within("sweeps", "reports")]
    assert [str(found) for found in upwards if not found.lazy] == []
    assert [str(found) for found in everything if found.within("bench.cli")] == []


@pytest.mark.parametrize(
    ("package", "never"),
    [
        ("reports", ("torch", "algorithms", "transformers", "mlflow")),
        ("sweeps", ("transformers", "vllm", "mlflow", "datasets", "accelerate")),
        ("tasks", ("torch", "bench", *VERIFIERS)),
    ],
)
def test_packages_never_load(package: str, never: tuple[str, ...]) -> None:
    assert loaded_by(load_all(package)) & set(never) == set()


@pytest.mark.parametrize(
    ("module", "never"),
    [
        ("bench.cli", ("torch", "transformers", "mlflow", "pandas", "matplotlib")),
        ("bench.store", ("torch", "algorithms", "transformers")),
        ("bench.evaluation", ("torch", "algorithms", "transformers")),
        ("bench.catalog", ("torch",)),
    ],
)
def test_modules_never_load(module: str, never: tuple[str, ...]) -> None:
    """What must answer at once, or must work where no engine is installed."""
    assert loaded_by(f"import {module}") & set(never) == set()


def test_files_and_functions_are_short() -> None:
    found = files(*PACKAGES, "tests", *(["benchmarks"] if (ROOT / "benchmarks").is_dir() else []))
    lengths = {path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in found}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_FILE_LINES} == {}
    spans = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in found
        for node in functions(path)
    }
    assert {name: lines for name, lines in spans.items() if lines > MAX_FUNCTION_LINES} == {}


def test_every_file_opens_with_its_one_idea() -> None:
    """An empty `__init__.py` has none; every other file begins with a docstring whose first line is a sentence."""
    openings = {
        path.relative_to(ROOT).as_posix(): (ast.get_docstring(tree(path)) or "").partition("\n")[0]
        for path in files(*PACKAGES, "tests")
        if path.read_text(encoding="utf-8").strip()
    }
    assert {path: line for path, line in openings.items() if not line.endswith((".", "?", ":"))} == {}


def test_no_algorithm_is_named_in_the_training_loop() -> None:
    """The loop calls the objective; what an algorithm needs follows from its components (names of metrics are not
    meant)."""
    loops = [path for path in files("bench") if re.fullmatch(r"train|learn\w*|optimize", path.stem)]
    word = re.compile(rf"\b({'|'.join(map(re.escape, names('algorithms')))})\b(?!/)", re.IGNORECASE)
    hits = [
        f"{path.name}: {line.strip()}" for path in loops for line in path.read_text().splitlines() if word.search(line)
    ]
    assert hits == []
    assert loops


def test_there_are_no_other_packages() -> None:
    """Six folders of Python: the five packages and the tests (measuring scripts may stand beside them)."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
    with_python = {folder.name for folder in folders if next(folder.rglob("*.py"), None)}
    assert with_python - {"benchmarks", "docs", "build"} == {*PACKAGES, "tests"}
    assert list(ROOT.glob("*.py")) == []
