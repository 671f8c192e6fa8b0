"""The form score of JSON: whether a completion gives a value that is valid for a schema; runs in worker processes."""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.parts.formats import NotJson, json_value


def scores(completions: Sequence[str], schema: Mapping[str, Any] | bool) -> list[float]:
    """1 for a completion whose JSON is valid, 0 for any other."""
    validator = _validator(schema)
    return [float(_valid(validator, completion)) for completion in completions]


def schema_mistake(schema: Any) -> str | None:
    """Why this cannot be a schema; None where it can."""
    import jsonschema

    if not isinstance(schema, dict | bool):
        return "is not a JSON schema, which is an object"
    try:
        type(_validator(schema)).check_schema(schema)
        list(_validator(schema).iter_errors(None))
    except jsonschema.SchemaError as error:
        return f"is not a JSON schema: {error.message} (at {error.json_path})"
    except Exception as error:  # a reference into the network or to nowhere
        return f"cannot be used as a JSON schema: {type(error).__name__}: {error}"
    return None


def _validator(schema: Mapping[str, Any] | bool) -> Any:
    import referencing
    from jsonschema.validators import Draft202012Validator, validator_for

    kind: Any = validator_for(schema, default=Draft202012Validator)
    # An empty registry: no reference is fetched from the network.
    return kind(schema, registry=referencing.Registry())


def _valid(validator: Any, completion: str) -> bool:
    try:
        return validator.is_valid(json_value(completion))
    except (NotJson, RecursionError):
        return False
