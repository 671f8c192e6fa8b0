"""Casting: the models of a run with their optimizers, each where the objective needs it, and the learner for them."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from algorithms.axes.imitation import Imitation
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.preference import Preference
from bench.adapted_weights import held, trained
from bench.adapters import reference_of
from bench.checkpoint import weights_digest
from bench.compute import enable_checkpointing
from bench.config import Run
from bench.critics import make_critic
from bench.instruments import Instruments
from bench.learn_imitation import ImitationLearner
from bench.learn_online import OnlineLearner
from bench.learn_pairs import PairLearner
from bench.learner import Cast, Learner
from bench.memory import MemoryMeter
from bench.models import LanguageModel
from bench.optimize import adamw
from bench.rollout import Sampler
from bench.sharding import decoder_layers, shard


def make_learner(
    run: Run, cast: Cast, sampler: Sampler, instruments: Instruments, directory: Path | None = None
) -> Learner:
    """The learner of the objective's family.

    Args:
        directory: the run's, where fixed completions are kept for a resume, and what is measured beside training goes.
    """
    match run.objective:
        case PolicyGradient() as objective:
            return OnlineLearner(run, objective, cast, sampler, instruments, directory)
        case Preference() as objective:
            return PairLearner(run, objective, cast, sampler, instruments, directory)
        case Imitation() as objective:
            return ImitationLearner(run, objective, cast, sampler, instruments, directory)


def make_cast(run: Run, start: LanguageModel) -> Cast:
    """The policy, and a reference and a critic exactly where the objective needs them in memory."""
    needs = run.objective.needs
    network = start.network
    torch.nn.Module.to(network, run.device)
    reference, critic, critic_optimizer = None, None, None
    if needs.reference and isinstance(run.objective, PolicyGradient):
        frozen = deepcopy(network).requires_grad_(False) if run.adapter is None else reference_of(network, run.adapter)
        reference = LanguageModel(frozen, start.tokenizer, start.prompt_format)
    if needs.critic:
        critic = make_critic(run, start)
    if run.compute.gradient_checkpointing:
        # Of each model that is trained by itself: a copy would still ask the other one about its attention.
        for model in (network, critic.trunk if critic else None):
            if model is not None:
                enable_checkpointing(model)
    if run.parallel.strategy == "fsdp":
        # A head on the policy's states is whole in every process: it is small, and its gradient is summed.
        own = critic if critic is not None and critic.trunk is not None else None
        for model in [network, reference.network if reference else None, own]:
            if model is not None:
                shard(model, decoder_layers(model))
    if critic is not None and run.critic is not None:
        critic_optimizer = adamw(trained(critic), run.critic.lr, run.optimizer)
    optimizer = adamw(trained(network), run.optimizer.lr, run.optimizer)
    policy = LanguageModel(network, start.tokenizer, start.prompt_format)
    return Cast(policy, optimizer, reference, critic, critic_optimizer)


def own_memory(cast: Cast, memory: MemoryMeter) -> None:
    """Tell the meter whose the models' and the optimizers' tensors are."""
    memory.own("optimizer", cast.optimizer)
    if cast.reference is not None:
        memory.own("reference", cast.reference.network)
    if cast.critic is not None and cast.critic_optimizer is not None:
        memory.own("critic", cast.critic)
        memory.own("optimizer", cast.critic_optimizer)
    # Last: what others share with the policy, such as the base of an adapter, is the policy's.
    memory.own("policy", held(cast.policy.network))


def critic_record(run: Run, cast: Cast) -> dict[str, Any] | None:
    """What the critic is before its first update: its kind, whose states it reads, size and hash of its own weights.

    None without one. Every process of the run calls it, for what is sharded is gathered from all of them.
    """
    if run.critic is None or cast.critic is None:
        return None
    return {
        "kind": run.critic.kind,
        "states": "the policy's" if cast.critic.trunk is None else type(cast.critic.trunk).__name__,
        "num_parameters": sum(parameter.numel() for parameter in cast.critic.parameters()),
        "num_trained": sum(parameter.numel() for parameter in trained(cast.critic)),
        "start_weights_sha256": weights_digest(cast.critic),
    }
