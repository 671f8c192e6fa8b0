"""The contract for a loss that is to be checked: a function of one optimizer step, and what it claims to be.

    claims = "dapo"                                   # a preset, or a dict of axes

    def loss(step: Step) -> Tensor:                   # the scalar whose gradient the optimizer would see
        def part(rows: Step) -> Tensor:               # what the trainer calls backward on, for one microbatch
            ...
        return accumulate(step, part)

    def advantages(reward, group) -> Tensor: ...      # optional, and so are `trained`, `gae` and `overlong`

`claims` and the optional functions are attributes of the loss or, failing that, names in its module.
"""

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from algorithms.axes.imitation import Imitation
from algorithms.axes.policy_gradient import PolicyGradient
from algorithms.axes.preference import Preference
from bench import catalog
from bench.conformance.examples import example
from bench.conformance.step import AnyStep, Outcome
from bench.dialect import ConfigError
from bench.explain import explain
from bench.loading import plain_objective
from bench.schema import Place

_HOOKS = ("advantages", "trained", "gae", "overlong")
_OFF: Mapping[str, Any] = {
    "shaping": "no_shaping",
    "selection": "keep_all",
    "penalty": "no_penalty",
    "value": "no_critic",
}
"""Axes without a default in a preset, and what a claim that does not name them means."""


class Mistake(ConfigError):
    """The target cannot be checked; the message is one line for its author."""

    def __init__(self, line: str) -> None:
        super().__init__([line])


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """A loss under test. Everything but `loss` is optional: checks that need it are not applicable without it."""

    name: str
    claims: Mapping[str, Any]
    """The objective that it claims to be, as plain data with all knobs (`resolve_claims`)."""
    claimed: str
    """How the claim was put: a preset's name, or `axes`."""
    loss: Callable[[Any], Tensor]
    """From a `Step` (a `PairStep` for a preference claim) to the scalar whose gradient the optimizer sees."""
    advantages: Callable[[Tensor, Tensor], Tensor] | None = None
    """(reward (rows,), group (rows,)) -> (rows,): of completions of one token, with nothing else in the reward."""
    trained: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    """(reward (rows,), group (rows,), terminated (rows,)) -> (rows,) bool: completions that the loss counts."""
    gae: Callable[..., Tensor] | None = None
    """(reward, value, mask, gamma, lam, next_value (rows,)) -> advantages (rows, tokens), not whitened."""
    overlong: Callable[[int, int, int], float] | None = None
    """(length, completion budget, buffer in tokens) -> what is added to the reward, for the claimed factor."""
    notes: Mapping[str, str] | None = None
    """By a check's name, one sentence on why this implementation deviates or differs there."""
    out_of_reach: Mapping[str, str] | None = None
    """By a check's name, why what it tries cannot happen where this implementation runs: it does not apply then."""
    own: bool = False
    """Whether it is one of this suite's, which our own conventions bind."""
    comparison: bool = False
    """Whether its authors make no such claim: the column is shown for comparison, and counts nowhere."""

    @property
    def family(self) -> str:
        """policy_gradient, preference or imitation."""
        return self.claims["kind"]


def call(name: str, function: Callable[..., Any], *arguments: object) -> Any:
    """What the author's function returns.

    Raises:
        Mistake: it raised; the message has the error's first line.
    """
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:  # code that is not ours may fail in any way
        raise Mistake(f"{name} raised {_in_a_line(error)}") from error


def _in_a_line(error: BaseException) -> str:
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def call_for_tensor(name: str, function: Callable[..., Any], shape: tuple[int, ...], *arguments: object) -> Tensor:
    """The tensor that the author's function returns, in float64 and without a gradient.

    Raises:
        Mistake: it raised, or returned something else.
    """
    found = call(name, function, *arguments)
    if not isinstance(found, Tensor) or tuple(found.shape) != shape:
        given = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise Mistake(f"{name} returned {given}, must be a tensor of shape {shape}")
    return found.detach().double()


def evaluate(implementation: Implementation, step: AnyStep) -> Outcome:
    """Call the loss on a copy of a step and differentiate it.

    Raises:
        Mistake: it raised, changed its inputs, or returned no scalar that depends on the log-probabilities.
    """
    own = step.map(lambda values: values.detach().clone())
    leaves = {name: getattr(own, name).requires_grad_() for name in step.LEAVES}
    name = implementation.name
    loss = call(name, implementation.loss, own)
    for field, given in step.tensors().items():
        if not torch.equal(getattr(own, field).detach().nan_to_num(nan=-7.0), given.nan_to_num(nan=-7.0)):
            raise Mistake(f"{name} changes step.{field}, which a trainer would go on to use: work on a copy")
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        given = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise Mistake(f"{name} returned {given}, must be a tensor with one number")
    where = " and ".join(f"step.{leaf}" for leaf in step.LEAVES)
    if not loss.requires_grad:
        raise Mistake(f"{name} returned a loss without a gradient: it must depend on {where}")
    found = cast(tuple[Tensor | None, ...], torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True))
    if all(part is None for part in found):
        raise Mistake(f"{name} returned a loss whose gradient does not reach {where}")
    parts = [
        torch.zeros_like(leaf) if part is None else part for leaf, part in zip(leaves.values(), found, strict=True)
    ]
    return Outcome(float(loss.detach()), torch.cat(parts, dim=1))


def resolve_claims(claims: object) -> tuple[dict[str, Any], str]:
    """A claim as plain data with every knob, and how it was put.

    Args:
        claims: a preset's name, or a dict from axes to components: a kind, or a dict with the kind and its knobs.

    Raises:
        Mistake: it names nothing.
    """
    if isinstance(claims, str):
        try:
            return plain_objective(catalog.load_preset(claims).objective), claims
        except catalog.UnknownName as error:
            raise Mistake(f"claims is {claims!r}: {error}") from None
    if not isinstance(claims, Mapping):
        raise Mistake(f"claims is {claims!r}, must be a preset's name or a dict of axes")
    axes = {key: {"kind": value} if isinstance(value, str) else value for key, value in claims.items()}
    family = Preference if "loss_function" in axes else Imitation if "source" in axes else PolicyGradient
    if family is PolicyGradient:
        axes = {key: {"kind": value} for key, value in _OFF.items()} | axes
    elif family is Preference:
        axes = {"pairing": {"kind": "graded_pairs"}} | axes
    try:  # as JSON, because strict components take their knobs from plain data only there
        return plain_objective(TypeAdapter(family).validate_json(json.dumps(axes))), "axes"
    except TypeError as error:
        raise Mistake(f"claims: {error}") from None
    except ValidationError as error:
        lines = [f"claims.{line.lstrip(': ')}" for line in explain(error, Place(family), axes)]
        raise Mistake("; ".join(lines)) from None


def load(target: str) -> Implementation:
    """The loss at `package.module:function`, looked for where you stand and on the Python path.

    Raises:
        Mistake: it is not there, or breaks the contract.
    """
    path, colon, name = target.partition(":")
    if not (path and colon and name):
        raise Mistake(f"{target}: give package.module:function")
    module = _module(path, target)
    loss = getattr(module, name, None)
    if loss is None:
        choices = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = catalog.nearest(name, choices)
        raise Mistake(f"{target}: {path} has no {name}{f'; did you mean {near}?' if near else ''}")
    if not callable(loss):
        raise Mistake(f"{target}: {name} is {type(loss).__name__}, must be a function of one step")
    claims = getattr(loss, "claims", getattr(module, "claims", None))
    if claims is None:
        raise Mistake(f"{target}: neither {name} nor its module has claims, such as claims = 'dapo'")
    plain, claimed = resolve_claims(claims)
    hooks: dict[str, Any] = {hook: getattr(loss, hook, getattr(module, hook, None)) for hook in _HOOKS}
    found = Implementation(
        name=target, claims=plain, claimed=claimed, loss=cast(Callable[[Any], Tensor], loss), **hooks
    )
    evaluate(found, example(plain))  # what cannot be called at all is a mistake, not a deviation
    return found


def _module(path: str, target: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is not None and (path == error.name or path.startswith(f"{error.name}.")):
            raise Mistake(f"{target}: there is no module {error.name}") from None
        raise Mistake(f"{target}: importing {path} failed: {error}") from None
    except (Exception, SystemExit) as error:  # code that is not ours may fail in any way
        raise Mistake(f"{target}: importing {path} raised {_in_a_line(error)}") from None
