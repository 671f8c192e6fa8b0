"""Casting: the models of a run with their optimizers, each where the objective needs it, and the learner for them."""

from copy import deepcopy

import torch

from algorithms.axes.imitation import Imitation
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.preference import Preference
from bench.adapted_weights import plain_copy, trained
from bench.adapters import reference_of
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


def make_learner(run: Run, cast: Cast, sampler: Sampler, instruments: Instruments) -> Learner:
    """The learner of the objective's family."""
    match run.objective:
        case PolicyGradient() as objective:
            return OnlineLearner(run, objective, cast, sampler, instruments)
        case Preference() as objective:
            return PairLearner(run, objective, cast, sampler, instruments)
        case Imitation() as objective:
            return ImitationLearner(run, objective, cast, sampler, instruments)


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
        assert run.critic is not None, "the configuration gives a critic to objectives that need one"
        critic = Critic(deepcopy(network) if run.adapter is None else plain_copy(network)).to(run.device)
    if run.compute.gradient_checkpointing:
        # Of each model that is trained by itself: a copy would still ask the other one about its attention.
        for model in [network, *([] if critic is None else [critic.trunk])]:
            enable_checkpointing(model)
    if run.parallel.strategy == "fsdp":
        for model in [network, reference.network if reference else None, critic]:
            if model is not None:
                shard(model, decoder_layers(model))
    if critic is not None and run.critic is not None:
        critic_optimizer = adamw(critic.parameters(), run.critic.lr, run.optimizer)
    optimizer = adamw(trained(network), run.optimizer.lr, run.optimizer)
    policy = LanguageModel(network, start.tokenizer, start.prompt_format)
    return Cast(policy, optimizer, reference, critic, critic_optimizer)
