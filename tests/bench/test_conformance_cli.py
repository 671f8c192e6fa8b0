"""`bench conformance`: what it prints and returns, and one line for each way to break the adapter's contract."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jaxtyping
import pytest
from typer.testing import CliRunner

from bench.cli import app
from bench.conformance.adapter import Mistake, load, resolve_claims
from bench.conformance.checks import CHECKS, check
from bench.conformance.table import WIDEST, conforms, lines, plain, tables, to_json

HEAD = "import torch\nfrom bench.conformance.step import accumulate\n"
RIGHT = """
claims = {"advantage": "group_centred", "surrogate": {"kind": "unclipped"}, "reduction": "token_mean"}
def loss(step):
    def part(rows):
        ratio = (rows.logp - rows.old_logp).where(rows.mask, 0.0).exp()
        return -(ratio * rows.advantage.where(rows.mask, 0.0)).sum() * len(step.ranks) / step.mask.sum()
    return accumulate(step, part)
"""


@pytest.fixture(autouse=True)
def _a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules are looked for where the user stands; none of them stays behind."""
    monkeypatch.chdir(tmp_path)
    before, path = set(sys.modules), list(sys.path)
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.startswith("given_"):
            del sys.modules[name]


def write(name: str, text: str) -> None:
    Path(f"{name}.py").write_text(HEAD + text)


def bench(*arguments: str) -> tuple[int, list[str], list[str]]:
    result = CliRunner().invoke(app, ["conformance", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout.splitlines(), result.stderr.splitlines()


def test_a_preset_passes() -> None:
    status, out, err = bench("dpo")
    assert (status, err) == (0, [])
    assert out[0].split() == ["check", "dpo"]
    assert out[1] == "golden value                 pass"
    assert out[-1] == "1 loss: 11 checks pass, 0 deviate, 16 do not apply"


def test_a_loss_of_ones_own_by_a_dict_of_axes() -> None:
    write("given_right", RIGHT)
    status, out, _ = bench("given_right:loss")
    assert status == 0
    assert out[-1] == "1 loss: 13 checks pass, 0 deviate, 14 do not apply"


def test_a_bug_is_status_1_with_both_numbers_and_goes_to_the_file() -> None:
    write("given_wrong", RIGHT.replace("len(step.ranks)", "1"))
    status, out, _ = bench("given_wrong:loss", "--json", "found.json")
    assert status == 1
    assert [line for line in out if "DEVIATES" in line] == ["two ranks                    DEVIATES"]
    assert out[-2] == (
        "given_wrong:loss: two ranks: 0.5 where 1.0 is expected; factor between the gradient and the expected one"
    )
    (stored,) = json.loads(Path("found.json").read_text())["implementations"]
    assert stored["claims"] == "axes"
    assert [finding for finding in stored["findings"] if finding["status"] == "deviates"] == [
        {
            "check": "two ranks",
            "status": "deviates",
            "measured": 0.5,
            "expected": 1.0,
            "detail": "factor between the gradient and the expected one",
        }
    ]


@pytest.mark.parametrize(
    ("target", "module", "message"),
    [
        ("dapoo", "", "dapoo: did you mean dapo? give package.module:function, trl, or one of our presets"),
        ("given_no:loss", "", "given_no:loss: there is no module given_no"),
        ("given_a:", "", "given_a:: give package.module:function"),
        ("given_b:los", RIGHT, "given_b:los: given_b has no los; did you mean loss?"),
        ("given_c:claims", RIGHT, "given_c:claims: claims is dict, must be a function of one step"),
        ("given_d:f", "def f(step): return step.logp.sum()", "given_d:f: neither f nor its module has claims, such as"),
        ("given_e:f", "claims = 'grop'\ndef f(step): ...", "claims is 'grop': there is no algorithm of that name; did"),
        ("given_f:f", "claims = 3\ndef f(step): ...", "claims is 3, must be a preset's name or a dict of axes"),
        ("given_g:f", "claims = 'dapo'\ndef f(): ...", "given_g:f raised TypeError: f() takes 0 positional arguments"),
        ("given_h:f", "claims = 'dapo'\ndef f(step): ...", "given_h:f returned NoneType, must be a tensor with one"),
        (
            "given_i:f", "claims = 'dapo'\ndef f(step): return step.logp",
            "given_i:f returned a tensor of shape (8, 8), must be a tensor with one number",
        ),
        (
            "given_j:f", "claims = 'dapo'\ndef f(step): return step.logp.detach().sum()",
            "given_j:f returned a loss without a gradient: it must depend on step.logp",
        ),
        (
            "given_k:f", "claims = 'dpo'\ndef f(step): return torch.zeros(1, requires_grad=True).sum()",
            "given_k:f returned a loss whose gradient does not reach step.chosen_logp and step.rejected_logp",
        ),
        ("given_l:f", "import no_such_thing", "given_l:f: importing given_l failed: No module named 'no_such_thing'"),
        ("given_m:f", "1 / 0", "given_m:f: importing given_m raised ZeroDivisionError: division by zero"),
        ("given_n:f", "raise SystemExit(5)", "given_n:f: importing given_n raised SystemExit: 5"),
        ("given_o:f", "claims = 'dapo'\ndef f(step): raise SystemExit", "given_o:f raised SystemExit"),
        (
            "given_p:f", "claims = 'dapo'\ndef f(step): step.advantage.zero_(); return step.logp.sum()",
            "given_p:f changes step.advantage, which a trainer would go on to use: work on a copy",
        ),
        (
            "given_q:f", "claims = 'dapo'\ndef f(step): step.mask.fill_(True); return step.logp.sum()",
            "given_q:f changes step.mask, which a trainer would go on to use: work on a copy",
        ),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_status_2(target: str, module: str, message: str) -> None:
    if module:
        write(target.partition(":")[0], module)
    status, out, err = bench(target)
    assert (status, out, len(err)) == (2, [], 1)
    assert err[0].startswith(message)


def test_without_trl_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    status, out, err = bench("trl")
    assert (status, out, len(err)) == (2, [], 1)
    assert err[0].startswith("trl: ")
    assert err[0].endswith("; pip install trl==1.16.0")


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"surrogate": "unclipped", "reduction": "token_mean"}, "claims.advantage: missing, must be"),
        (
            {"advantage": "gruop_centred", "surrogate": "unclipped", "reduction": "token_mean"},
            "claims.advantage.kind: \"gruop_centred\" given, must be",
        ),
        ({"loss_function": {"kind": "sigmoid", "beta": 0}}, "claims.loss_function.beta: 0 given, must be"),
        ({"loss_function": {1.0}}, "claims: Object of type set is not JSON serializable"),
        (
            {"advantage": "group_centred", "surrogate": {"kind": "clip", "hihg": 0.3}, "reduction": "token_mean"},
            "claims.surrogate.hihg: 0.3 given, but there is no such knob; did you mean surrogate.high?",
        ),
    ],
)  # fmt: skip
def test_claims_that_name_nothing(claims: dict[str, object], message: str) -> None:
    with pytest.raises(Mistake) as caught:
        resolve_claims(claims)
    assert str(caught.value).startswith(message)


def test_claims_of_the_function_come_before_those_of_its_module() -> None:
    write("given_two", RIGHT + "loss.claims = 'grpo_trl'\n")
    assert load("given_two:loss").claimed == "grpo_trl"


def test_a_claim_that_the_kit_cannot_feed_is_never_a_pass() -> None:
    write("given_focus", RIGHT.replace('"token_mean"}', '"token_mean", "focus": "top_entropy_tokens"}'))
    results = plain([check(load("given_focus:loss"))])
    assert {finding["status"] for finding in results["implementations"][0]["findings"]} == {"not applicable"}
    assert lines(results) == [f"1 loss: 0 checks pass, 0 deviate, {len(CHECKS)} do not apply"]


def test_a_convention_of_ours_binds_nobody_else() -> None:
    """Who keeps unscored completions in the denominator differs: it is told, and the exit status is 0."""
    keeps = "def trained(reward, group, ended):\n    return torch.ones_like(ended)\n"
    write("given_keeps", RIGHT + keeps)
    status, out, _ = bench("given_keeps:loss")
    assert status == 0
    assert [line.split() for line in out if "(ours)" in line] == [
        ["infinite", "rewards", "(ours)", "-"], ["unscored", "completions", "(ours)", "differs"]
    ]  # fmt: skip
    assert out[-2].startswith("given_keeps:loss: unscored completions: 1.0 where 0.0 is expected")
    assert out[-1] == "1 loss: 14 checks pass, 0 deviate, 12 do not apply, 1 differ from a convention of ours"


def test_what_is_out_of_reach_does_not_apply_and_a_comparison_does_not_count() -> None:
    write("given_beside", RIGHT.replace("len(step.ranks)", "1"))
    wrong = load("given_beside:loss")
    reached = check(replace(wrong, out_of_reach={"two ranks": "it has one process"}))
    assert reached.deviations == []
    assert [f.detail for f in reached.findings if f.detail == "it has one process"] == ["it has one process"]
    results = plain([check(wrong), check(replace(wrong, comparison=True))])
    assert [line.split(": ")[1] for line in lines(results)[:-1]] == ["two ranks"]
    assert lines(results)[-1] == "1 loss: 12 checks pass, 1 deviate, 14 do not apply; for comparison, not counted: 1"
    assert conforms(plain([check(replace(wrong, comparison=True))]))


def test_wide_tables_are_cut() -> None:
    write("given_wide", RIGHT)
    column = check(load("given_wide:loss"))
    found = tables(plain([column] * 9))
    assert len(found) > 1
    assert sum(len(header) - 1 for header, _ in found) == 9
    for header, rows in found:
        assert sum(len(name) + 2 for name in header) - 2 <= WIDEST
        assert [len(row) for row in rows] == [len(header)] * len(CHECKS)


def test_the_example_of_the_documentation(root: Path) -> None:
    """The right loss passes; the bug is seen by what cuts the step, and by nothing else."""
    spec = importlib.util.spec_from_file_location("docs.example_losses", root / "docs/example_losses.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs.example_losses"] = module
    try:
        spec.loader.exec_module(module)
        right, wrong = (plain([check(load(f"docs.example_losses:{name}"))]) for name in ("token_mean", "mean_of_means"))
    finally:
        del sys.modules["docs.example_losses"]
    assert conforms(right)
    deviations = [f["check"] for f in wrong["implementations"][0]["findings"] if f["status"] == "deviates"]
    assert deviations == ["accumulation", "uneven microbatches", "two ranks", "masked microbatch"]
    stored = (root / "results/conformance/mean_of_means.json").read_text(encoding="utf-8")
    assert stored == to_json(wrong), "docs/conformance.md says how to refresh it"


def test_the_page_is_fresh(root: Path) -> None:
    spec = importlib.util.spec_from_file_location("docs_conformance", root / "docs/conformance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = (root / "docs/conformance.md").read_text(encoding="utf-8")
    assert text == module.fill(text), "run: python docs/conformance.py"
    assert "| who is trained |" in text
