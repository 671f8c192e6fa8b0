"""Two processes: every preset and every reduction, 3 tokens against 60, give the gradient of one process.

Run as a script (`RANK STORE RESULT`) this file is one of the processes.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from algorithms import dapo, ppo
from algorithms.axes.batch import Batch, PairBatch, PairTotals, Totals, ValueBatch
from algorithms.axes.bonus import EntropyBonus
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.preference import Preference
from algorithms.axes.reduction import ConstantLength, Reduction, SequenceMean, SequenceSum
from algorithms.axes.value import ValueLoss
from bench.catalog import load_preset, names

LENGTHS = torch.tensor([1, 2, 0, 25, 14, 15, 6])
GROUP = torch.tensor([0, 1, 1, 1, 2, 2, 2])
"""Group 1 has members in both processes, one of them without a token."""
ROWS = ([0, 1, 2], [3, 4, 5, 6])
PAIRS = ([(1, 0)], [(3, 4), (4, 5), (6, 3)])
"""Chosen and rejected row of each pair, by process."""
MASK = torch.arange(25)[None, :] < LENGTHS[:, None]
MICROBATCH = "reduction microbatch_token_mean"


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


FEATURES, SAMPLED = noise(0, 7, 25, 4), torch.arange(175).view(7, 25) % 8
OLD, REFERENCE, ADVANTAGE, WEIGHT = (scale * noise(seed, 7, 25) for seed, scale in enumerate((0.1, 0.3, 1, 0.2), 1))


def counts(ranks: Sequence[int]) -> Tensor:
    """What processes must add up: one microbatch each, completions with a token, all completions, pairs, tokens of the
    chosen sides, and the tokens of each group."""
    rows = [row for rank in ranks for row in ROWS[rank]]
    chosen = [LENGTHS[pair[0]] for rank in ranks for pair in PAIRS[rank]]
    groups = torch.zeros(3).index_add(0, GROUP[rows], LENGTHS[rows].float())
    used = (LENGTHS[rows] > 0).sum()
    return torch.cat([torch.tensor([len(ranks), used, len(rows), len(chosen), sum(chosen)]).float(), groups])


def losses(weights: Tensor, ranks: Sequence[int], counted: Tensor) -> dict[str, Tensor]:
    """The share of the step's loss that the rows of some processes have, by preset, reduction and other term."""
    num_microbatches, used, all_rows, num_pairs, num_chosen = (int(value) for value in counted[:5])
    groups, rows = counted[5:], [row for rank in ranks for row in ROWS[rank]]
    totals = Totals(
        num_tokens=int(groups.sum()),
        num_sequences=used,
        num_rows=all_rows,
        num_groups=int((groups > 0).sum()),
        num_microbatches=num_microbatches,
        completion_budget=30,
    )
    every = torch.log_softmax(FEATURES @ weights, dim=-1)
    logp = every.gather(-1, SAMPLED[..., None])[..., 0]
    batch = Batch(
        logp=logp[rows],
        old_logp=logp.detach()[rows] + OLD[rows],
        ref_logp=logp.detach()[rows] + REFERENCE[rows],
        advantage=ADVANTAGE[rows],
        mask=MASK[rows],
        group_tokens=groups[GROUP[rows]].double(),
        weight=1 + WEIGHT[rows],
        entropy=-(every.exp() * every).sum(dim=-1)[rows],
    )
    chosen, rejected = ([pair[side] for rank in ranks for pair in PAIRS[rank]] for side in (0, 1))
    whole, reference = ((values * MASK).sum(dim=1) for values in (logp, logp.detach() + REFERENCE))
    pairs = PairBatch(
        chosen_logp=whole[chosen],
        rejected_logp=whole[rejected],
        ref_chosen_logp=reference[chosen],
        ref_rejected_logp=reference[rejected],
        chosen_length=LENGTHS[chosen].double(),
        rejected_length=LENGTHS[rejected].double(),
    )
    pair_totals = PairTotals(num_pairs=num_pairs, num_chosen_tokens=num_chosen)
    value = ValueBatch(value=batch.logp, old_value=OLD[rows], returns=ADVANTAGE[rows], mask=batch.mask)
    assert isinstance(ppo.objective.value, ValueLoss)
    found = {"value": ppo.objective.value(value, totals).loss}
    for name, objective in objectives().items():
        preference = isinstance(objective, Preference)
        found[name] = objective.loss(*((pairs, pair_totals) if preference else (batch, totals))).loss
    return found


def objectives() -> dict[str, Any]:
    """Presets, DAPO with each reduction in place of its own, and presets with an entropy bonus."""
    presets = {name: load_preset(name).objective for name in names("algorithms")}
    reductions = [cls() for cls in get_args(Reduction)]
    reductions += [cls(count_masked=True) for cls in (SequenceMean, ConstantLength, SequenceSum)]
    swapped = {
        f"reduction {reduction.kind}{' of all' if getattr(reduction, 'count_masked', False) else ''}": replace(
            dapo.objective, reduction=reduction
        )
        for reduction in reductions
    }
    bonus = {
        f"{name} with a bonus": replace(objective, bonus=EntropyBonus(coefficient=0.3))
        for name, objective in presets.items()
        if isinstance(objective, PolicyGradient)
    }
    return presets | swapped | bonus


def gradients(ranks: Sequence[int], counted: Tensor) -> dict[str, Tensor]:
    """The gradient of each loss on the weights that all processes share."""
    weights = noise(9, 4, 8).requires_grad_()
    return {
        name: torch.autograd.grad(loss, weights, retain_graph=True)[0]
        for name, loss in losses(weights, ranks, counted).items()
    }


def work(rank: int, store: str, result: str) -> None:
    """One of two processes: its own rows, the sum of both processes' counts, the sum of both processes' gradients."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    counted = counts([rank])
    dist.all_reduce(counted)
    own = gradients([rank], counted)
    for gradient in own.values():
        dist.all_reduce(gradient)
    Path(result).write_text(json.dumps({name: gradient.tolist() for name, gradient in own.items()}))
    dist.destroy_process_group()


@pytest.mark.slow
def test_obj_06_two_processes_give_the_gradient_of_one(tmp_path: Path, root: Path) -> None:
    """Exact for all but the microbatch mean, which is the plain average of the two processes' own means: 3 tokens count
    as much as 60. Every other loss would be wrong if each process divided by its own counts."""
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__]
    processes = [
        subprocess.Popen([*command, str(rank), f"{tmp_path}/store", f"{tmp_path}/{rank}.json"], env=environment)
        for rank in (0, 1)
    ]
    assert [process.wait(timeout=60) for process in processes] == [0, 0]
    one = gradients([0, 1], counts([0, 1]))
    alone = [gradients([rank], counts([rank])) for rank in (0, 1)]
    for rank in (0, 1):
        two = json.loads((tmp_path / f"{rank}.json").read_text())
        assert set(two) == set(one)
        for name, gradient in one.items():
            assert gradient.norm() > 1e-3, name
            apart = float((torch.tensor(two[name], dtype=torch.float64) - gradient).norm() / gradient.norm())
            average = (alone[0][name] + alone[1][name]) / 2
            naive = float((average - gradient).norm() / gradient.norm())
            if name == MICROBATCH:
                assert apart > 0.1
                assert torch.allclose(torch.tensor(two[name], dtype=torch.float64), average, atol=1e-12)
            else:
                assert apart < 1e-12, name
                assert naive > 0.01, name


if __name__ == "__main__":
    work(int(sys.argv[1]), sys.argv[2], sys.argv[3])
