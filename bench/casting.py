"""Casting: the models of a run with their optimizers, each where the objective needs it, and the learner for them."""

from copy import deepcopy
from pathlib import Path

import torch

from algorithms.axes.imitation import Imitation
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.preference import Preference
from bench.compute import enable_checkpointing
from bench.config import Run
from bench.instruments import Instruments
from bench.learn_imitation import ImitationLearner
from bench.learn_online import OnlineLearner
from bench.learn_pairs import PairLearner
from bench.learner import Cast, Learner
from bench.models import Critic, LanguageModel
from bench.optimize import adamw
from bench.rollout import Sampler
from bench.sharding import decoder_layers, shard


def make_learner(
    run: Run, cast: Cast, sampler: Sampler, instruments: Instruments, directory: Path | None = None
) -> Learner:
    """The learner of the objective's family.

    Args:
        directory: the run's, where fixed completions are kept for a resume; None keeps none.
    """
    match run.objective:
        case PolicyGradient() as objective:
            return OnlineLearner(run, objective, cast, sampler, instruments)
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
        reference = LanguageModel(deepcopy(network).requires_grad_(False), start.tokenizer, start.prompt_format)
    if needs.critic:
        assert run.critic is not None, "the configuration gives a critic to objectives that need one"
        critic = Critic(deepcopy(network)).to(run.device)
    if run.compute.gradient_checkpointing:
        # Of each model that is trained by itself: a copy would still ask the other one about its attention.
        for trained in [network, *([] if critic is None else [critic.trunk])]:
            enable_checkpointing(trained)
    if run.parallel.strategy == "fsdp":
        for model in [network, reference.network if reference else None, critic]:
            if model is not None:
                shard(model, decoder_layers(model))
    if critic is not None and run.critic is not None:
        critic_optimizer = adamw(critic.parameters(), run.critic.lr, run.optimizer)
    optimizer = adamw(network.parameters(), run.optimizer.lr, run.optimizer)
    policy = LanguageModel(network, start.tokenizer, start.prompt_format)
    return Cast(policy, optimizer, reference, critic, critic_optimizer)
