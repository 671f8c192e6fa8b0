"""The YAML that this suite reads and writes: plain data only, numbers and booleans as in YAML 1.2, no key given twice.

PyYAML follows YAML 1.1, which reads `1e-6` as text and `no` as false, and lets the last of two equal keys win.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import yaml

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"

_TAG = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?[0-9]+$")
_FLOAT = re.compile(
    r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_BOOLEAN = re.compile(r"(?:true|false)$")
_NULL = re.compile(r"(?:~|null|Null|NULL|)$")


class ConfigError(ValueError):
    """What is wrong with a configuration, one line a mistake."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


class _Reader(yaml.SafeLoader):
    pass


class _Writer(yaml.SafeDumper):
    """Quotes whatever either dialect would read as something else than text, so that both read the file alike."""


_Reader.yaml_implicit_resolvers = {}
_Reader.add_implicit_resolver(_TAG + "bool", _BOOLEAN, list("tf"))
_Reader.add_implicit_resolver(_TAG + "null", _NULL, ["~", "n", "N", ""])
for _dialect in (_Reader, _Writer):
    _dialect.add_implicit_resolver(_TAG + "int", _INTEGER, list("-+0123456789"))
    _dialect.add_implicit_resolver(_TAG + "float", _FLOAT, list("-+.0123456789"))


def read_yaml(path: Path) -> dict[str, Plain]:
    """Read a file that holds one mapping.

    Raises:
        ConfigError: there is no such file, it is not YAML of this dialect, or it holds something else than a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: not a text file in UTF-8"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    value = parse_yaml(text, str(path))
    if not isinstance(value, dict | None):
        raise ConfigError([f"{path}: holds {type(value).__name__}, must be knobs such as `seed: 1`"])
    return value or {}


def parse_yaml(text: str, source: str) -> Plain:
    """Plain data from YAML text; `source` names it in errors.

    Raises:
        ConfigError: a syntax error (one line) or every key that is given twice or is not text (one line each).
    """
    try:
        node = yaml.compose(text, Loader=_Reader)
    except yaml.YAMLError as error:
        raise ConfigError([f"{source}: {_one_line(error)}"]) from None
    mistakes: list[str] = []
    value = None if node is None else _plain(node, source, mistakes, ())
    if mistakes:
        raise ConfigError(mistakes)
    return value


def to_yaml(value: Mapping[str, object]) -> str:
    """YAML text, keys in the order given, that `parse_yaml` and any YAML 1.1 reader turn into the same data."""
    return yaml.dump(dict(value), Dumper=_Writer, sort_keys=False, allow_unicode=True)


def _one_line(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem or error.context}"
    return " ".join(str(error).split())


def _plain(node: yaml.Node, source: str, mistakes: list[str], parents: tuple[yaml.Node, ...]) -> Plain:
    where = f"{source} line {node.start_mark.line + 1}"
    if node in parents:
        mistakes.append(f"{where}: an alias that contains itself")
        return None
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, where, mistakes)
    inside = (*parents, node)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, source, mistakes, inside) for item in node.value]
    value: dict[str, Plain] = {}
    for key_node, item in node.value:
        key, line = key_node.value, key_node.start_mark.line + 1
        if key_node.tag != _TAG + "str":
            mistakes.append(f"{source} line {line}: the key {_short(key)} is not text, every knob has a name")
        elif key in value:
            mistakes.append(f"{source} line {line}: the key {key} is given twice")
        else:
            value[key] = _plain(item, source, mistakes, inside)
    return value


def _short(key: object) -> str:
    return key if isinstance(key, str) else "that starts here"


def _scalar(node: yaml.ScalarNode, where: str, mistakes: list[str]) -> Plain:
    kind, text = node.tag.removeprefix(_TAG), node.value
    if kind == "str":
        return text
    if kind == "null" and _NULL.match(text):
        return None
    if kind == "bool" and _BOOLEAN.match(text):
        return text == "true"
    if kind == "int" and _INTEGER.match(text):
        return int(text)
    if kind == "float" and _FLOAT.match(text):
        return float(re.sub(r"^([-+]?)\.(?=[iInN])", r"\1", text))
    mistakes.append(f"{where}: {node.tag.replace(_TAG, '!!')} cannot be used on {text!r}; write it without a tag")
    return None
