"""The checks of `bench doctor` that need the model: it loads, its tokenizer keeps answers, prompts fit the context."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

from bench.adapters import misfits, num_trained
from bench.config import PretrainedModel, Prompt, Run, TinyModel
from bench.config_preference import fixed_pairs
from bench.config_reward_model import TrainedReward
from bench.critics import Critic, make_critic
from bench.doctor import Check, Material
from bench.generate import ContextTooSmall
from bench.models import LanguageModel, ModelUnavailable, context_of, create_tiny, load_pretrained
from bench.preference_tokens import PairsUnavailable, encoded_pairs, fetched
from bench.prompting import encode_prompts
from bench.resume import kept_at_most
from bench.rollout import NothingToLearn
from tasks.parts.problem import Problem

_SOLUTIONS = 200
_QUOTED_LINES = 40
_TOO_LONG_WARNED = 0.05
# In float32: the weights, and for what a run resumes from also AdamW's two moments.
_WEIGHT_BYTES, _CHECKPOINT_BYTES = 4, 12


def model_checks(run: Run, materials: Sequence[Material]) -> Iterator[Check]:
    """Load the model and look at it and at what it is given."""
    if run.device == "cuda" and not torch.cuda.is_available():
        yield Check("model", "fail", ("device: cuda given, but torch sees no CUDA device here; use device=cpu",))
    try:
        model = (
            create_tiny(run.model, run.alphabet, run.seed)
            if isinstance(run.model, TinyModel)
            else load_pretrained(run.model)
        )
    except ModelUnavailable as error:
        yield Check("model", "fail", (str(error), "tokenizer, context and prompt are not checked"))
        return
    yield loaded(run, model)
    found, critic = critic_of(run, model)
    if found is not None:
        yield found
    adapted = list(adapter(run, model))
    yield from adapted
    if all(check.state != "fail" for check in adapted):
        yield room(run, model, critic)
    yield from learned_reward(run, model)
    yield from preferences(run, model)
    if not materials or materials[0].label:
        return
    own = materials[0]
    yield round_trip(model, own)
    yield from engine(run, model)
    try:
        yield lengths(run, model, materials, critic)
        yield written(run, model, own)
    except Exception as error:  # a chat template is a program of the model's author
        reason = " ".join(str(error).split())[:300]
        advice = "use model.prompt_format=plain, or set a chat template in the tokenizer"
        yield Check("prompt", "fail", (f"the chat template cannot write it: {reason}", advice))


def loaded(run: Run, model: LanguageModel) -> Check:
    """Size, context and the way prompts are written."""
    size = sum(parameter.numel() for parameter in model.network.parameters())
    name = run.model.path if isinstance(run.model, PretrainedModel) else "tiny model, made from scratch"
    context = f"context {model.context:,} tokens" if model.context else "no stated context"
    if model.prompt_format == "chat":
        how = "prompts are one user turn in the tokenizer's chat template"
    elif isinstance(run.model, PretrainedModel) and run.model.prompt_format == "auto":
        how = "prompts are plain text, because the tokenizer has no chat template"
    else:
        how = "prompts are plain text"
    size_line = f"{size / 1e6:,.1f} million parameters, {context}"
    return Check("model", "ok", (name, size_line, f"{how} ({model.prompt_format})"))


def adapter(run: Run, model: LanguageModel) -> Iterator[Check]:
    """Whether the run's adapter fits the model, and how much of it is trained."""
    if run.adapter is None:
        return
    try:
        lines = misfits(run)
    except ModelUnavailable as error:
        lines = [str(error)]
    if lines:
        yield Check("adapter", "fail", tuple(lines))
        return
    layers, size = num_trained(model.network, run.adapter)
    yield Check("adapter", "ok", (f"{size / 1e6:,.3g} million parameters are trained, around {layers} linear layers",))


def learned_reward(run: Run, model: LanguageModel) -> Iterator[Check]:
    """Whether a reward model that is there fits the policy, or what the stage that trains one will do."""
    config = run.reward.model
    if config is None:
        return
    if isinstance(config, TrainedReward):
        drawn = f"{config.problems:,} problems x {config.samples} completions, {config.updates:,} updates"
        yield Check("reward model", "ok", (f"trained by bench prepare or the first run: {drawn}",))
        return
    from bench.prepare import Start
    from bench.reward_model import judge_of

    try:
        judge = judge_of(run, Start(model, {}))
    except ModelUnavailable as error:
        yield Check("reward model", "fail", (str(error),))
        return
    assert judge is not None, "the run has one"
    size = f"{judge.about['num_parameters'] / 1e6:,.1f} million parameters"
    context = f"context {judge.context:,} tokens" if judge.context else "no stated context"
    yield Check("reward model", "ok", (config.path, f"{size}, {context}, {run.reward.formula()}"))


def preferences(run: Run, model: LanguageModel) -> Iterator[Check]:
    """What is left of a fixed preference set, and its first pair as the model sees it."""
    source = fixed_pairs(run.objective)
    if source is None:
        return
    try:
        made = encoded_pairs(model, fetched(source), run.rollout.max_completion_tokens)
    except (PairsUnavailable, NothingToLearn) as error:
        yield Check("preferences", "fail", (str(error),))
        return
    rows, left, first = int(made.found["dpo/rows"]), len(made.pairs), made.pairs[0]
    seen = [model.tokenizer.decode(list(ids)) for ids in (first.prompt_ids, first.chosen, first.rejected)]
    shown = (f"prompt {seen[0]!r}", f"chosen {seen[1]!r}", f"rejected {seen[2]!r}")
    yield Check("preferences", "ok" if left == rows else "warn", (f"{left:,} of {rows:,} rows are pairs", *shown))


def engine(run: Run, model: LanguageModel) -> Iterator[Check]:
    """Whether an engine with weights of its own starts, samples, and agrees with the trainer."""
    if run.engine.kind == "builtin":
        return
    from bench.engines import EngineFailed, EngineMismatch, engine_of, engine_record, probe

    about = engine_record(run)
    name = " ".join(str(about[key]) for key in ("package", "version") if about.get(key)) or run.engine.kind
    try:
        with engine_of(run) as generate:
            gap = probe(run, generate, model)
    except (EngineFailed, EngineMismatch, ContextTooSmall) as error:
        yield Check("engine", "fail", (name, str(error)))
        return
    yield Check("engine", "ok", (name, f"its log-probabilities are the trainer's within {gap:.1g} nats a token"))


def critic_of(run: Run, model: LanguageModel) -> tuple[Check | None, Critic | None]:
    """Whether the critic can be had and reads what the policy writes; None where there is none."""
    if run.critic is None:
        return None, None
    try:
        critic = make_critic(run, model)
    except ModelUnavailable as error:
        return Check("critic", "fail", (str(error),)), None
    size, scale = sum(p.numel() for p in critic.parameters()), f"its last layer starts as {run.critic.head_init}"
    return Check("critic", "ok", (f"{run.critic.kind}: {size:,} parameters of its own, {scale}",)), critic


def room(run: Run, model: LanguageModel, critic: Critic | None) -> Check:
    """Whether the final model and the checkpoints fit the disk."""
    size = sum(p.numel() for p in model.network.parameters())
    trained = size if run.adapter is None else num_trained(model.network, run.adapter)[1]
    trained += sum(p.numel() for p in (critic or nn.Module()).parameters() if p.requires_grad)
    kept, models = kept_at_most(run)
    needed = models * size * _WEIGHT_BYTES + kept * trained * _CHECKPOINT_BYTES
    root = Path(run.output.root).absolute()
    free = shutil.disk_usage(next(folder for folder in (root, *root.parents) if folder.is_dir())).free
    line = f"model and checkpoints take about {_size(needed)} of {_size(free)} free"
    return Check("room", "fail" if needed > free else "warn" if 2 * needed > free else "ok", (line,))


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.1f} MB"


def round_trip(model: LanguageModel, own: Material) -> Check:
    """Whether the tokenizer gives worked solutions back, and which token ends a completion."""
    ends = ", ".join(f"{model.tokenizer.convert_ids_to_tokens(i)} ({i})" for i in model.end_ids)
    ended = f"a completion ends with {ends}"
    changed: list[tuple[Problem, str]] = []
    answered = [(p, text) for p in (*own.train, *own.test)[:_SOLUTIONS] if (text := own.task.stated(p)) is not None]
    for problem, text in answered:
        back = model.decode(model.encode_completion(text))
        if not own.task.grade(problem, back).correct and own.task.grade(problem, text).correct:
            lost = f"{problem.id}: its worked solution comes back from the tokenizer as {back[-80:]!r}, a wrong answer"
            return Check("tokenizer", "fail", (ended, lost))
        changed += [(problem, back)] if back != text else []
    if changed:
        problem, back = changed[0]
        first = (
            f"{len(changed)} of {len(answered)} worked solutions come back changed, such as {problem.id}: {back[:80]!r}"
        )
        return Check("tokenizer", "warn", (ended, first))
    return Check("tokenizer", "ok", (ended, f"{len(answered)} worked solutions come back unchanged"))


def lengths(run: Run, model: LanguageModel, materials: Sequence[Material], critic: Critic | None = None) -> Check:
    """Whether the longest prompt leaves room for a completion, for the critic too, and that for a worked solution."""
    contexts = (model.context, None if critic is None or critic.trunk is None else context_of(critic.trunk))
    context = min((length for length in contexts if length is not None), default=None)
    budget = run.rollout.max_completion_tokens
    longest, problem_id, too_long, asked = 0, "", 0, 0
    for material, prompt, problems in _asked(run, materials):
        for problem, ids in zip(problems, encode_prompts(model, material.task, problems, prompt), strict=True):
            asked += 1
            too_long += context is not None and len(ids) + budget > context
            if len(ids) > longest:
                longest, problem_id = len(ids), problem.id
    of = f" of {context:,}" if context else ""
    lines = [f"longest prompt {longest:,} ({problem_id}) + completion {budget:,} = {longest + budget:,}{of} tokens"]
    if too_long:
        lines.append(f"{too_long:,} of {asked:,} prompts leave no room for rollout.max_completion_tokens: lower it")
        return Check("context", "fail", tuple(lines))
    solved = [problem.solution for problem in materials[0].train[:_SOLUTIONS] if problem.solution]
    long = sum(len(model.encode_completion(text)) > budget for text in solved)
    if solved and long > _TOO_LONG_WARNED * len(solved):
        lines.append(
            f"{long} of {len(solved)} worked solutions are longer than rollout.max_completion_tokens: "
            "completions like them would be cut"
        )
        return Check("context", "warn", tuple(lines))
    return Check("context", "ok", tuple(lines))


def _asked(run: Run, materials: Sequence[Material]) -> Iterator[tuple[Material, Prompt, Sequence[Problem]]]:
    """Every prompt that the model is given: in training, and in each evaluation."""
    most = run.evaluation.problems
    yield materials[0], run.prompt, materials[0].train
    for material in materials:
        yield material, run.prompt, material.test[:most]
    if run.evaluation.start:
        yield from ((materials[0], prompt, materials[0].test[:most]) for prompt in run.evaluation.start_prompts)


def written(run: Run, model: LanguageModel, own: Material) -> Check:
    """The first training prompt as the model sees it, special tokens and all."""
    problem = own.train[0]
    (ids,) = encode_prompts(model, own.task, [problem], run.prompt)
    text = str(model.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
    lines = text.split("\n")
    more = [f"  ... {len(lines) - _QUOTED_LINES} more lines"] if len(lines) > _QUOTED_LINES else []
    about = f"{problem.id} as the model sees it ({run.prompt.label}, {len(ids)} tokens), gold {problem.gold}:"
    return Check("prompt", "ok", (about, *(f"  | {line}" for line in lines[:_QUOTED_LINES]), *more))
