"""The YAML dialect: YAML 1.2 numbers and booleans, nothing given twice, and files that every reader reads alike."""

from pathlib import Path

import pytest
import yaml

from bench.dialect import ConfigError, parse_yaml, read_yaml, to_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E5", 1e5),
        ("-3e+2", -300.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("010", 10),
        ("+7", 7),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("[1, 2.0, 3e0]", [1, 2.0, 3.0]),
        (".inf", float("inf")),
        ("-.inf", float("-inf")),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    read = parse_yaml(text, "test")
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "text",
    ["no", "yes", "on", "off", "True", "FALSE", "y", "1_000", "1:30", "0x1F", "2024-01-01", "1e", "nan", "inf", "-"],
)
def test_everything_else_is_text(text: str) -> None:
    assert parse_yaml(f"key: {text}" if text != "-" else "key: '-'", "test") == {"key": text}


def test_quoted_and_tagged_text_stays_text() -> None:
    assert parse_yaml("[\"1e-6\", 'true', !!str 5]", "test") == ["1e-6", "true", "5"]


def test_every_key_given_twice_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("seed: 1\noptimizer:\n  lr: 1\n  lr: 2\nseed: 2\n")
    with pytest.raises(ConfigError) as error:
        read_yaml(path)
    assert error.value.lines == [
        f"{path} line 4: the key lr is given twice",
        f"{path} line 5: the key seed is given twice",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1", "test: line 1: expected ',' or ']', but got '<stream end>'"),
        ("1: a", "test line 1: the key 1 is not text, every knob has a name"),
        ("? [a]\n: b", "test line 1: the key that starts here is not text, every knob has a name"),
        ("a: !!bool no", "test line 1: !!bool cannot be used on 'no'; write it without a tag"),
        (
            "a: !!python/name:os.system x",
            "test line 1: !!python/name:os.system cannot be used on 'x'; write it without a tag",
        ),
        ("a: &loop [*loop]", "test line 1: an alias that contains itself"),
    ],
)
def test_what_cannot_be_read_is_one_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_yaml(text, "test")
    assert error.value.lines == [line]


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    listed, binary = tmp_path / "list.yaml", tmp_path / "binary.yaml"
    listed.write_text("- 1\n")
    binary.write_bytes(b"\xff\xfe\x00")
    expected = {
        tmp_path / "none.yaml": "cannot be read: No such file or directory",
        tmp_path: "cannot be read: Is a directory",
        listed: "holds list, must be knobs such as `seed: 1`",
        binary: "not a text file in UTF-8",
    }
    for path, words in expected.items():
        with pytest.raises(ConfigError) as error:
            read_yaml(path)
        assert error.value.lines == [f"{path}: {words}"]


def test_an_empty_file_has_no_knobs(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("# nothing\n")
    assert read_yaml(path) == {}


def test_what_is_written_reads_back_here_and_in_yaml_1_1() -> None:
    # A git revision may look like a number in one dialect and not in the other.
    data = {"revision": "12e4567", "text": ["no", "1e-6", "1_000", "0x1F", "true", "~", "", "2024-01-01", "a: b"]}
    data |= {"numbers": [1e-6, 1e16, 1e22, 0.1, 3, -0.0], "flags": [True, None]}
    assert parse_yaml(to_yaml(data), "test") == data
    assert yaml.safe_load(to_yaml(data)) == data
