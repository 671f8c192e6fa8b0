"""Gradients side by side: they are the learner's own, add up over prompts, and agree where the objectives are one."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from algorithms.axes.batch import LossParts
from bench.casting import make_cast
from bench.cli import app
from bench.config import Run
from bench.contenders import Contender
from bench.contributions import Contributions, Share, contributions
from bench.dialect import ConfigError, to_yaml
from bench.generate import sample
from bench.gradient_sums import cosines, gradient_of
from bench.gradients import Point, compare, frozen_rollout
from bench.instruments import Instruments
from bench.learn_online import OnlineLearner
from bench.memory import MemoryMeter
from bench.meter import PhaseClock
from bench.prepare import starting_model
from bench.rollout import PromptStream, Sampler
from bench.seeding import stream_key
from bench.train import execute

MakeRun = Callable[..., Run]


def contenders(tiny_run: MakeRun, *algorithms: str, **knobs: object) -> list[Contender]:
    return [Contender(name, tiny_run(name, **knobs)) for name in algorithms]


def instruments() -> Instruments:
    return Instruments(PhaseClock(), MemoryMeter("cpu"))


def numbers(point: Point, name: str) -> tuple[float, float]:
    row = next(row for row in point.rows if row.name == name)
    assert row.norm is not None
    assert row.loss is not None
    return row.norm, row.loss


def linear(weights: list[list[list[float]]], parameter: nn.Parameter) -> Contributions:
    """Shares whose gradients are known: each is its weights times the parameter, summed."""

    def share(row: list[float]) -> Share:
        return lambda: LossParts(loss=(torch.tensor(row) * parameter).sum(), means={}, maxima={})

    return [[share(row) for row in own] for own in weights]


def test_sums_over_prompts_against_brute_force() -> None:
    """Prompt gradients (3, 0), (0, 0) and (0, 4) + (1, 0): an empty prompt counts as one that adds nothing."""
    parameter, unused = nn.Parameter(torch.tensor([2.0, 0.5])), nn.Parameter(torch.ones(3))
    found = gradient_of(linear([[[3, 0]], [], [[0, 4], [1, 0]]], parameter), [parameter, unused])
    own = torch.tensor([[3.0, 0.0], [0.0, 0.0], [1.0, 4.0]], dtype=torch.float64)
    assert torch.equal(found.parts[0], torch.tensor([4.0, 4.0]))
    assert torch.equal(found.parts[1], torch.zeros(3))
    assert found.loss == pytest.approx(2 * 4 + 0.5 * 4)
    trace = torch.cov(own.T).trace()
    assert found.signal_to_noise == pytest.approx(float(own.mean(dim=0).norm() / (trace / 3).sqrt()))
    assert parameter.grad is None


def test_extremes_of_signal_to_noise_and_cosine() -> None:
    parameter = nn.Parameter(torch.ones(2))
    alike, single, opposite, nothing = (
        gradient_of(linear(weights, parameter), [parameter])
        for weights in ([[[1, 2]], [[1, 2]]], [[[1, 2]]], [[[-2, -4]], [[0, 0]]], [[[1, 0]], [[-1, 0]]])
    )
    assert alike.signal_to_noise == math.inf
    assert math.isnan(single.signal_to_noise)
    assert math.isnan(nothing.signal_to_noise)
    found = cosines({"alike": alike, "opposite": opposite, "nothing": nothing})
    assert found["alike"]["alike"] == pytest.approx(1)
    assert found["alike"]["opposite"] == pytest.approx(-1)
    assert math.isnan(found["alike"]["nothing"])


@pytest.mark.parametrize("algorithm", ["ppo", "grpo", "dapo_literal", "lite_ppo"])
def test_the_gradient_is_the_one_of_the_learners_own_update(algorithm: str, tiny_run: MakeRun) -> None:
    """Same prompts, one update a rollout: the norm and the loss that training reports. Prompts add up to the whole."""
    knobs = {"rollout.updates_per_rollout": 1, "objective.selection.kind": "keep_all"}
    run = tiny_run(algorithm, **knobs)
    (point,) = compare([Contender(algorithm, run)])
    cast = make_cast(run, starting_model(run).model)
    learner = OnlineLearner(run, run.objective, cast, Sampler(run, run.task, sample, instruments()), instruments())  # type: ignore[arg-type]
    learner.stream = PromptStream(run.task, stream_key(run.seed, "gradients"), run.rollout.prompts)
    record = next(learner.advance())
    assert record["grad_norm"] > 1e-3
    assert numbers(point, algorithm) == pytest.approx((record["grad_norm"], record["loss"]), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("algorithm", ["ppo", "dpo", "dpo_nll", "rft", "sft"])
def test_prompts_add_up_and_the_sums_hold_their_spread(algorithm: str, tiny_run: MakeRun) -> None:
    """Each prompt alone, against one backward pass over everything and against the matrix of all prompts' gradients."""
    pairing = {"objective.pairing.require_termination": False} if algorithm.startswith("dpo") else {}
    run = tiny_run(algorithm, **pairing)
    cast = make_cast(run, starting_model(run).model)
    parameters = list(cast.policy.network.parameters())
    own = contributions(run, cast, frozen_rollout(run, cast.policy, instruments()), instruments())
    assert len(own) == run.rollout.prompts
    alone = [
        torch.cat([part.flatten() for part in gradient_of([shares], parameters).parts]) for shares in own if shares
    ]
    matrix = torch.stack([*alone, *[torch.zeros_like(alone[0])] * (len(own) - len(alone))]).double()
    torch.stack([share().loss for shares in own for share in shares]).sum().backward()
    whole = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).double()
    cast.policy.network.zero_grad(set_to_none=True)
    assert whole.norm() > 1e-3
    torch.testing.assert_close(matrix.sum(dim=0), whole, rtol=1e-4, atol=1e-6)
    found = gradient_of(own, parameters)
    trace = matrix.var(dim=0).sum()
    expected = matrix.mean(dim=0).norm() / (trace / len(own)).sqrt()
    assert found.norm == pytest.approx(float(whole.norm()), rel=1e-5)
    assert found.signal_to_noise == pytest.approx(float(expected), rel=1e-4)


def test_on_policy_the_ratio_objectives_are_one_and_off_policy_they_part(tiny_run: MakeRun) -> None:
    """CISPO = DAPO and GSPO = GRPO at ratio 1 (GRPO's KL to itself has no gradient); not after a few steps."""
    four = contenders(tiny_run, "dapo", "cispo", "grpo", "gspo", **{"optimizer.lr": 1e-2})
    on, off = compare(four, drifts=[3, 0], drift_by="grpo")
    assert (on.drift, off.drift) == (0, 3)
    assert numbers(on, "cispo")[0] == pytest.approx(numbers(on, "dapo")[0], rel=1e-5)
    assert numbers(on, "gspo")[0] == pytest.approx(numbers(on, "grpo")[0], rel=1e-5)
    for first, second in (("cispo", "dapo"), ("gspo", "grpo"), ("dapo", "dapo")):
        assert on.cosine[first][second] == pytest.approx(1, abs=1e-6)
    assert on.cosine["dapo"]["grpo"] < 0.999
    assert {row.bounded_share for row in on.rows} == {0.0}
    assert [row.largest_ratio for row in on.rows] == [1.0] * 4
    assert off.cosine["cispo"]["dapo"] < 0.999
    assert off.cosine["gspo"]["grpo"] < 0.999
    assert all(row.largest_ratio is not None and row.largest_ratio > 1.01 for row in off.rows)
    assert next(row.bounded_share for row in off.rows if row.name == "gspo") > 0.1  # type: ignore[operator]


def test_the_same_comparison_twice_gives_the_same_numbers(tiny_run: MakeRun) -> None:
    names = ("ppo", "rft")
    first, second = (list(compare(contenders(tiny_run, *names), drifts=[1])) for _ in range(2))
    assert json.dumps(list(map(asdict, first))) == json.dumps(list(map(asdict, second)))


def test_an_objective_without_material_is_skipped_with_its_reason(tiny_run: MakeRun) -> None:
    """At most one token a completion: no worked solution fits, the others have their gradients."""
    (point,) = compare(contenders(tiny_run, "grpo", "sft", **{"rollout.max_completion_tokens": 1, "warm_start": None}))
    assert [row.name for row in point.rows if row.skipped] == ["sft"]
    assert "rollout.max_completion_tokens = 1" in point.skipped()[0]
    assert set(point.cosine) == {"grpo"}


def test_what_one_rollout_cannot_hold_is_refused(tiny_run: MakeRun) -> None:
    pair = [Contender("grpo", tiny_run("grpo")), Contender("dapo", tiny_run("dapo", **{"rollout.group_size": 4}))]
    with pytest.raises(ConfigError) as caught:
        next(compare(pair, drift_by="gropo"))
    assert caught.value.lines == [
        "rollout.group_size: 8 for grpo and 4 for dapo, but all objectives are put on one rollout; give one value",
        "--drift-by: gropo given, must be one of grpo, dapo",
    ]


def bench(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def run_file(tiny_run: MakeRun, tmp_path: Path) -> Path:
    dump = tiny_run("grpo").dump()
    del dump["algorithm"], dump["objective"]
    (tmp_path / "run.yaml").write_text(to_yaml(dump))
    return tmp_path / "run.yaml"


def test_the_command_prints_plain_tables_and_writes_all_numbers(run_file: Path, tmp_path: Path) -> None:
    status, out, _ = bench("gradients", run_file, "algorithm=dr_grpo,rloo", "--json", tmp_path / "out.json")
    lines = out.splitlines()
    assert status == 0
    assert lines[0].startswith("starting model: 8 prompts, 64 completions, ")
    assert [line.split()[0] for line in lines if line] == [
        "starting",
        "objective",
        "dr_grpo",
        "rloo",
        "cosine",
        "dr_grpo",
        "rloo",
    ]
    written = json.loads((tmp_path / "out.json").read_text())
    assert list(written["objectives"]) == ["dr_grpo", "rloo"]
    assert written["points"][0]["cosine"]["dr_grpo"]["dr_grpo"] == pytest.approx(1)


def test_mistakes_are_one_line_and_status_2(run_file: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/run.yaml").write_text(run_file.read_text())
    cases = [
        ([run_file], "run.yaml: names no algorithm; give some, such as algorithm=grpo,dapo"),
        ([run_file, "algorithm=grpo,gropo"], 'algorithm: "gropo" given, there is no algorithm of that name; did you'),
        ([run_file, "algorithm=grpo", "--along", tmp_path / "no"], "no is not a run directory: there is no run.yaml"),
        ([run_file, "algorithm=grpo", "--along", tmp_path / "empty"], "empty has no complete checkpoint; a run keeps"),
        ([run_file, "algorithm=grpo,grpo"], "grpo: given twice"),
    ]
    for arguments, message in cases:
        status, _, err = bench("gradients", *arguments)
        assert (status, len(err.splitlines())) == (2, 1), err
        assert message in err


def test_a_sweep_gives_its_first_seed_and_its_own_knobs(run_file: Path, tmp_path: Path) -> None:
    """PPO's critic stands under per_algorithm, and PPO need not be compared."""
    knobs = "\n".join(f"  {line}" for line in run_file.read_text().splitlines() if not line.startswith("seed"))
    spec = tmp_path / "spec.yaml"
    rest = "cross: {algorithm: [ppo, grpo], seed: [3, 4]}\nper_algorithm: {ppo: {critic.lr: 0.01}}\n"
    spec.write_text(f"base:\n{knobs}\n{rest}")
    status, out, err = bench("gradients", spec, "algorithm=gspo,grpo")
    assert (status, err.splitlines()[-1:]) == (0, ["gradients: 2/2"])
    assert "1.000  1.000" in out
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["objective", "gspo", "grpo"]


@pytest.mark.slow
def test_along_a_run_every_whole_checkpoint_is_measured(tiny_run: MakeRun, tmp_path: Path) -> None:
    run = tiny_run("ppo", **{"checkpoint.every": 2, "checkpoint.keep": 3, "budget.updates": 6})
    assert execute(run, tmp_path / "run").state == "finished"
    (tmp_path / "run/checkpoints/step_000003").mkdir()
    points = list(compare([Contender("ppo", run), *contenders(tiny_run, "grpo", "dapo")], along=tmp_path / "run"))
    assert [point.update for point in points] == [0, 2, 4]
    assert len({numbers(point, "grpo") for point in points}) == 3
    # GRPO's KL term pulls back to the starting model, whose weights the policy has left.
    assert numbers(points[0], "grpo")[1] == pytest.approx(0, abs=1e-6)
    assert numbers(points[2], "grpo")[1] > 1e-6
    other = contenders(tiny_run, "grpo", **{"model.hidden_size": 64})
    with pytest.raises(ConfigError, match="did not start from the model"):
        next(compare(other, along=tmp_path / "run"))
