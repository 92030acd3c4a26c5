"""A cache policy by name, or a user's own by path: `lru`, `static`, `my.py:MyCache`. Parameters are the dataclass's fields.

The file of a user's own policy is imported, that is, run: it is the user's own code.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

from tokentape import policies
from tokentape.flows import own_modules
from tokentape.flows.names import unknown
from tokentape.policies.protocol import CachePolicy

Value = str | int | float | bool


def is_path(name: str) -> bool:
    """True for `file.py:Class`."""
    return ".py:" in name


def policy_class(name: str) -> type:
    """The class behind a policy's name. Raises ValueError with the nearest name, or saying what is wrong with the file."""
    if not is_path(name):
        if name.endswith(".py"):
            raise ValueError(f"policy {name!r}: name the class too, as in {name}:MyCache")
        if name not in policies.CACHES:
            raise unknown("policy", name, policies.CACHES)
        return policies.CACHES[name]
    path, _, class_name = name.rpartition(":")
    module = own_modules.load(Path(path))
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise unknown(f"class in {path}:", class_name, (n for n, v in vars(module).items() if isinstance(v, type)))
    if not dataclasses.is_dataclass(found):
        raise ValueError(f"{name}: a policy is a frozen dataclass; put @dataclass(frozen=True) above it (docs/development.md)")
    return found


def make_policy(name: str, params: Mapping[str, Value]) -> CachePolicy:
    """The policy with its parameters; text is converted to each field's type. Raises ValueError naming the parameter."""
    found = policy_class(name)
    hints = get_type_hints(found)
    fields = {f.name: hints[f.name] for f in dataclasses.fields(found)}
    values = {}
    for key, value in params.items():
        if key not in fields:
            raise unknown(f"parameter of {name}:", key, fields)
        values[key] = convert(f"{name}: {key}", value, fields[key])
    with blamed(name):
        try:
            policy = found(**values)
        except TypeError as error:  # a field without a default was left out
            raise ValueError(f"policy {name}: {str(error).split('() ')[-1]}; give it with --param NAME=VALUE") from error
    if not isinstance(policy, CachePolicy):
        raise ValueError(f"{name}: a policy needs the class attributes `kind` and `is_bound` (policies/protocol.py)")
    return policy


@contextmanager
def blamed(name: str | None) -> Iterator[None]:
    """Within it, what a user's own policy raises is one line that names its file and line; a shipped policy's bug stays one."""
    try:
        yield
    except (ValueError, OSError, ImportError, MemoryError):
        raise
    except Exception as error:
        if name is None or not is_path(name):
            raise
        path = Path(name.rpartition(":")[0]).resolve()
        lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if Path(at.filename).resolve() == path]
        where = f"{name}, line {lines[-1]}" if lines else name
        raise ValueError(f"{where}: the policy raised {type(error).__name__}: {error}") from error


def policy_sha256(name: str) -> str | None:
    """Hash of a user's own policy, its imports with it; None for a shipped one, whose source is hashed with its room."""
    return own_modules.sha256(Path(name.rpartition(":")[0])) if is_path(name) else None


def parse_params(texts: list[str]) -> dict[str, Value]:
    """`["a=1", "b=x"]` as a dict of texts."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise ValueError(f"--param {name + equals + value!r} is not NAME=VALUE")
    return {name: value for name, _, value in pairs}


def convert(where: str, value: Value, wanted: Any) -> Any:
    """`value` as the field's type. Raises ValueError naming `where` it does not fit."""
    if wanted is bool:
        if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        raise ValueError(f"{where}={value} is not true or false")
    if wanted not in (int, float, str):
        return value
    try:
        return wanted(value)
    except ValueError as error:
        raise ValueError(f"{where}={value} is not of type {wanted.__name__}") from error
