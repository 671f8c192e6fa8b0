"""Peak bytes by role and phase against arithmetic on paper and against the CPU allocator's own events."""

from pathlib import Path

import pytest
import torch
from torch import nn

from bench.memory import ROLES, MemoryMeter
from tasks.parts.resident import peak_resident_bytes

MLP_BYTES = (16 * 32 + 32 + 32 * 4 + 4) * 4


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), foreach=False)


def num_bytes(tensors):
    return sum(tensor.nbytes for tensor in tensors)


def metering(**owners):
    meter = MemoryMeter("cpu")
    for role, source in owners.items():
        meter.own(role, source)
    meter.metering = True
    return meter


def roles(meter, phase):
    return {role: held for role, held in meter.report()["phases"][phase]["roles"].items() if held}


def test_forward_pass_by_hand():
    model, x = mlp(), torch.ones(8, 16)
    meter = metering(policy=model)
    with meter.measure("values"), torch.no_grad():
        model(x)
    # The peak is at the ReLU: its input and its output, 8 x 32 floats each, beside the batch of 8 x 16.
    assert roles(meter, "values") == {"policy": MLP_BYTES, "activations": (8 * 16 + 2 * 8 * 32) * 4}
    assert meter.report()["phases"]["values"]["total"] == 2704 + 2560


def test_training_step_by_hand():
    model = mlp()
    optimizer = adamw(model)
    meter = metering(policy=model, optimizer=optimizer)
    with meter.measure("policy_update"):
        x = torch.ones(8, 16)
        model(x).square().mean().backward()
        optimizer.step()
    # The peak is in AdamW: the root of the second moment of the 16 x 32 weight, and the quotient made of it. Each of
    # the four parameters has two moments of its own size and a step counter of four bytes.
    expected = {"policy": MLP_BYTES, "gradients": MLP_BYTES, "optimizer": 2 * MLP_BYTES + 4 * 4}
    expected["activations"] = (8 * 16 + 2 * 16 * 32) * 4
    assert roles(meter, "policy_update") == expected
    assert meter.report()["peak"]["allocated_bytes"] == sum(expected.values()) == 15440


class Attention(nn.Module):
    """One attention block with tied embeddings: the operations of a language model."""

    def __init__(self, num_characters):
        super().__init__()
        self.embed, self.norm = nn.Embedding(num_characters, 32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = (part.unflatten(-1, (4, 8)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return (x + self.out(mixed)) @ self.embed.weight.T


def language_model_step(model, optimizer):
    ids = torch.arange(8 * 24).reshape(8, 24) % 25
    nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


def allocator_peak(step):
    """Peak of the bytes that the CPU allocator handed out during `step`, from the profiler's events."""
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    running = torch.tensor([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]).cumsum(0)
    return int(running.max())


# With few characters the peak falls into the backward of attention, whose kernel has buffers that no operation returns:
# they are the one thing the meter cannot see. With many characters the logits are the peak, and it sees everything.
@pytest.mark.parametrize(("num_characters", "unseen_share"), [(400, 0.0), (25, 0.02)])
def test_peak_equals_the_allocators_own_account(num_characters, unseen_share):
    torch.manual_seed(0)
    model = Attention(num_characters)
    optimizer = adamw(model)
    meter = metering(policy=model, optimizer=optimizer)
    for phase in ("first", "second"):  # the second step starts with the optimizer's state already there
        standing = num_bytes(model.parameters()) + num_bytes(t for s in optimizer.state.values() for t in s.values())
        with meter.measure(phase):
            language_model_step(model, optimizer)
        if phase == "first":
            optimizer.state.clear()
        peak = standing + allocator_peak(lambda: language_model_step(model, optimizer))
        assert 0 <= peak - meter.report()["phases"][phase]["total"] <= unseen_share * peak


def test_a_weight_gradient_is_a_gradient_from_its_allocation_on():
    weight, x = nn.Parameter(torch.ones(512, 8)), torch.ones(4, 8)
    meter = metering(policy=[weight])
    with meter.measure("policy_update"):
        (x @ weight.T).sum().backward()
    # The very product that allocates the gradient is the peak: the batch, the loss and its gradient are there too.
    assert roles(meter, "policy_update") == {"policy": 16384, "gradients": 16384, "activations": 4 * 8 * 4 + 4 + 4}


def test_accumulated_gradients_are_held_once_and_known_in_the_next_update():
    model = mlp()
    meter = metering(policy=model)
    for _ in range(2):
        with meter.measure("policy_update"):
            model(torch.ones(8, 16)).sum().backward()
    with meter.measure("advantage"):
        torch.ones(5)
    assert roles(meter, "advantage") == {"policy": MLP_BYTES, "gradients": MLP_BYTES, "activations": 20}


def test_what_the_rollout_made_stays_the_rollouts_while_it_lives():
    meter = metering()
    with meter.measure("rollout"):
        completions = torch.zeros(100)
        cache = torch.zeros(1000)
    with meter.measure("reward"):
        torch.ones(10)
    assert roles(meter, "reward") == {"rollout": 4400, "activations": 40}
    del cache
    with meter.measure("advantage"):
        completions.sum()
    assert roles(meter, "advantage") == {"rollout": 400, "activations": 4}
    assert meter.report()["peak"] == {"phase": "reward", "allocated_bytes": 4440} | {
        "roles": meter.report()["phases"]["reward"]["roles"]
    }


def test_tied_weights_and_views_are_counted_once():
    weight = nn.Parameter(torch.ones(10, 10))
    meter = metering(policy=[weight, weight.view(100)[:50]])
    with meter.measure("values"), torch.inference_mode():
        weight.T.reshape(5, 20)[0].view(4, 5)
    assert roles(meter, "values") == {"policy": 400, "activations": 400}  # the reshape of a transpose is a copy


def test_a_resized_storage_is_counted_at_its_new_size():
    meter = metering()
    with meter.measure("values"):
        out = torch.empty(0)
        torch.add(torch.ones(6), 1, out=out)
    with meter.measure("reward"):
        torch.ones(1)
    assert meter.report()["phases"]["reward"]["total"] == 24 + 4


def test_owning_a_batch_does_not_keep_it_alive():
    meter = metering()
    batch = torch.zeros(100)
    meter.own("rollout", [batch])
    with meter.measure("policy_update"):
        torch.ones(1)
    del batch
    with meter.measure("advantage"):
        torch.ones(1)
    assert roles(meter, "policy_update") == {"rollout": 400, "activations": 4}
    assert roles(meter, "advantage") == {"activations": 4}


def test_a_critic_costs_sixteen_bytes_a_parameter():  # MEM-06
    def standing_bytes(**models):
        optimizers = {role: adamw(model) for role, model in models.items()}
        meter = metering(**models)
        for optimizer in optimizers.values():
            meter.own("optimizer", optimizer)
        with meter.measure("policy_update"):
            for role, model in models.items():
                model(torch.ones(8, 16)).sum().backward()
                optimizers[role].step()
        with meter.measure("advantage"):
            torch.ones(1)
        return meter.report()["phases"]["advantage"]["total"]

    critic = mlp()
    difference = standing_bytes(policy=mlp(), critic=critic) - standing_bytes(policy=mlp())
    num_parameters, num_step_counters = sum(p.numel() for p in critic.parameters()), 4
    assert difference == 16 * num_parameters + 4 * num_step_counters


def test_an_inner_phase_does_not_lower_the_outer_peak():  # MEM-02
    meter = metering()
    with meter.measure("step"):
        torch.zeros(50)
        with meter.measure("rollout"):
            torch.zeros(100)
            with meter.measure("reward"):
                torch.zeros(1000)
        with meter.measure("policy_update"):
            held = torch.zeros(200)
    totals = {phase: entry["total"] for phase, entry in meter.report()["phases"].items()}
    assert totals == {"step": 4000, "rollout": 4000, "reward": 4000, "policy_update": 800}
    assert roles(meter, "policy_update") == {"activations": held.nbytes}


def test_a_phase_that_runs_out_of_memory_leaves_its_peak():  # MEM-03
    model = mlp()
    meter = metering(policy=model)

    def allocate_too_much():
        held = torch.zeros(1000)
        torch.empty(2**60, dtype=torch.uint8)
        return held

    with pytest.raises(RuntimeError, match="allocate memory"), meter.measure("reward"):
        allocate_too_much()
    assert roles(meter, "reward") == {"policy": MLP_BYTES, "activations": 4000}
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0


def test_the_largest_of_several_metered_updates_is_kept():
    meter = metering()
    for length in (10, 30, 20):
        with meter.measure("rollout"):
            torch.zeros(length)
    assert meter.report()["phases"]["rollout"]["total"] == 120


def test_an_update_that_is_not_metered_is_left_alone():
    model = mlp()
    optimizer = adamw(model)
    meter = metering(policy=model, optimizer=optimizer)
    with meter.measure("rollout"):
        torch.zeros(10)
    before = meter.report()["phases"]
    meter.metering = False
    with meter.measure("policy_update"):
        assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0
        assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
        assert not optimizer._optimizer_step_post_hooks
        model(torch.ones(8, 16)).sum().backward()
    assert meter.report()["phases"] == before


def test_what_a_cpu_run_cannot_know_is_none():  # MEM-04
    report = metering(policy=mlp()).report()
    assert (report["gpu_allocated_bytes"], report["gpu_reserved_bytes"], report["peak"]) == (None, None, None)
    assert report["phases"] == {}
    meter = metering(policy=mlp())
    with meter.measure("reward"):
        torch.ones(1)
    held = meter.report()["phases"]["reward"]["roles"]
    assert list(held) == list(ROLES)
    assert (held["critic"], held["reference"], held["optimizer"]) == (None, None, None)
    assert (held["gradients"], held["rollout"]) == (0, 0)


def test_resident_memory_is_the_high_water_mark():
    status = Path("/proc/self/status")
    if not status.exists():
        assert peak_resident_bytes() is None
        return
    ballast = torch.ones(32 * 2**20, dtype=torch.uint8)
    [now] = [int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if line.startswith("VmRSS:")]
    del ballast
    assert peak_resident_bytes() > now - 2**20 > 31 * 2**20  # the kernel's counters lag a little
