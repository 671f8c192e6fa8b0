"""Presets: written in full, cited to the last constant, and no two alike."""

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from algorithms.axes.needs import Needs
from bench.catalog import load_preset, names

OBJECTIVES = {name: load_preset(name).objective for name in names("algorithms")}
PAPER_CONSTANTS = {
    "ppo": {
        "advantage.gamma": 1.0,
        "advantage.lam": 1.0,
        "surrogate.low": 0.2,
        "surrogate.high": 0.2,
        "penalty.coefficient": 0.02,
        "penalty.estimator": "k1",
        "value.clip": 0.2,
    },
    "grpo": {
        "advantage.ddof": 1,
        "advantage.epsilon": 1e-4,
        "surrogate.low": 0.2,
        "surrogate.high": 0.2,
        "penalty.coefficient": 0.04,
        "penalty.estimator": "k3",
    },
    "dr_grpo": {"surrogate.low": 0.2, "surrogate.high": 0.2},
    "dapo": {"shaping.buffer": 0.2, "surrogate.low": 0.2, "surrogate.high": 0.28, "selection.max_rounds": 10},
    "dpo": {"loss_function.beta": 0.1},
}
OFF = {None, False, "none", "discard"} | {
    "keep_truncated",
    "token_ratio",
    "all_tokens",
    "no_correction",
    "no_bonus",
    "no_likelihood",
}
NEEDS = {
    "ppo": Needs(critic=True, reference=True, groups=False, old_logp=True),
    "grpo": Needs(critic=False, reference=True, groups=True),
    "dr_grpo": Needs(critic=False, reference=False, groups=True),
    "dapo": Needs(critic=False, reference=False, groups=True),
    "dpo": Needs(critic=False, reference=True, groups=True),
    "rloo": Needs(critic=False, reference=True, groups=True, old_logp=True),
    "reinforce": Needs(critic=False, reference=False, groups=False, one_update=True),
    "reinforce_pp": Needs(critic=False, reference=True, groups=False, old_logp=True),
    "online_rft": Needs(critic=False, reference=False, groups=False, reward=False, one_update=True),
    "rft": Needs(critic=False, reference=False, groups=False, reward=False),
    "sft": Needs(critic=False, reference=False, groups=False, reward=False, samples=False),
}
KINDS = {
    "ppo": ["no_shaping", "keep_all", "gae", "clip", "reward_kl", "token_mean", "value_loss"],
    "grpo": ["no_shaping", "keep_all", "group_standardised", "clip", "loss_kl", "sequence_mean", "no_critic"],
    "dr_grpo": ["no_shaping", "keep_all", "group_centred", "clip", "no_penalty", "constant_length", "no_critic"],
    "dapo": [
        "soft_overlong",
        "drop_uniform_groups",
        "group_standardised",
        "clip",
        "no_penalty",
        "token_mean",
        "no_critic",
    ],
    "dpo": ["sigmoid", "graded_pairs"],
}


def knobs(component: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path and value of every component and constant below an objective."""
    for field in fields(component):
        if field.name != "kind":
            value = getattr(component, field.name)
            name = f"{path}{field.name}"
            yield name, value
            if is_dataclass(value):
                yield from knobs(value, f"{name}.")


def written(preset: ModuleType) -> set[str]:
    """Dotted paths of the components and constants that a preset's file names."""
    (objective,) = (
        line.value
        for line in ast.parse(inspect.getsource(preset)).body
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "objective"
    )

    def below(call: ast.expr, path: str) -> Iterator[str]:
        for keyword in call.keywords if isinstance(call, ast.Call) else ():
            yield f"{path}{keyword.arg}"
            yield from below(keyword.value, f"{path}{keyword.arg}.")

    return set(below(objective, ""))


def test_every_component_and_constant_has_its_source_and_no_source_is_left_over(preset: ModuleType) -> None:
    assert set(preset.sources) == written(preset)
    assert all(source.strip() for source in preset.sources.values())


def test_every_source_says_where(preset: ModuleType) -> None:
    """A paper by its number, code by its owner, or plainly that there is none."""
    known = re.compile(r"\d{4}\.\d{5}|authors' (code|script|recipe)|(TRL|verl) \d|torch's default|our choice|deviation")
    assert {name: source for name, source in preset.sources.items() if not known.search(source)} == {}


def test_the_docstring_has_title_paper_and_deviations(preset: ModuleType) -> None:
    text = preset.__doc__ or ""
    title, blank, *rest = text.splitlines()
    assert re.fullmatch(r"[A-Z][\w. @+-]*: .+\.", title)
    assert blank == ""
    assert re.search(r"arXiv:\d{4}\.\d{5}", "\n".join(rest))
    assert re.search(r"^Deviations: \w", text, re.MULTILINE)


def test_a_preset_is_written_in_full(preset: ModuleType) -> None:
    """What a file does not name is off, so that neither a default nor another paper can change what it computes."""
    unsaid = {name: value for name, value in knobs(preset.objective) if name not in written(preset)}
    shown = {name: value.kind if is_dataclass(value) else value for name, value in unsaid.items()}
    assert {name: value for name, value in shown.items() if value not in OFF} == {}


def test_a_preset_file_is_short(preset: ModuleType) -> None:
    assert len(Path(str(preset.__file__)).read_text().splitlines()) <= 50


def test_presets_differ_in_more_than_their_name() -> None:
    for one, other in combinations(OBJECTIVES, 2):
        assert OBJECTIVES[one] != OBJECTIVES[other], (one, other)
        assert OBJECTIVES[one].formula() != OBJECTIVES[other].formula(), (one, other)


@pytest.mark.parametrize("name", PAPER_CONSTANTS)
def test_composition_and_constants_are_the_papers(name: str) -> None:
    """Spec section 9, and what each file cites: a change here is a change of the science, never of style."""
    found = dict(knobs(OBJECTIVES[name]))
    assert [value.kind for value in found.values() if is_dataclass(value) and value.kind not in OFF] == KINDS[name]
    assert {knob: found[knob] for knob in PAPER_CONSTANTS[name]} == PAPER_CONSTANTS[name]


@pytest.mark.parametrize("name", NEEDS)
def test_what_a_preset_needs(name: str) -> None:
    assert OBJECTIVES[name].needs == NEEDS[name]
