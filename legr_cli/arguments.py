"""Checks of arguments and settings: a value of the wrong type or size is one SettingError."""

import os
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from legr_cli.errors import SettingError


def option(name: str) -> str:
    """The command-line option of a setting: `batch_size` → `--batch-size`."""
    return "--" + name.replace("_", "-")


def check_number(value: Any, name: str, whole: bool = False) -> None:
    """Raise unless a value is a number, or a whole one."""
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise SettingError(f"{name} must be a {'whole ' * whole}number, got {_shown(value)}")


def check_types(settings: Any) -> None:
    """Raise unless every field of a dataclass that is a plain value has the type it declares."""
    for field in fields(settings):
        value, name = getattr(settings, field.name), option(field.name)
        kinds = get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
        if value is None and NoneType in kinds:
            continue
        if kinds[0] in (int, float):
            check_number(value, name, whole=kinds[0] is int)
        elif kinds[0] is str and not isinstance(value, str):
            raise SettingError(f"{name} must be a string, got {_shown(value)}")
        elif kinds[0] is bool and not isinstance(value, bool):
            raise SettingError(f"{name} must be True or False, got {_shown(value)}")
        elif get_origin(kinds[0]) is tuple:
            as_tuple(value, name)


def check_within(settings: Any, **limits: tuple[float, float]) -> None:
    """Raise unless every number is within its limits, both inclusive; NaN never is."""
    for name, (lowest, highest) in limits.items():
        value = getattr(settings, name)
        if not value >= lowest:
            raise SettingError(f"{option(name)} must be at least {lowest}, got {value}")
        if not value <= highest:
            raise SettingError(f"{option(name)} must be at most {highest}, got {value}")


def check_choice(settings: Any, **choices: tuple[str, ...]) -> None:
    """Raise unless every value is one of its choices."""
    for name, known in choices.items():
        if (value := getattr(settings, name)) not in known:
            raise SettingError(f"{option(name)} must be {' or '.join(known)}, got {value}")


def check_instance(value: Any, kind: type, name: str) -> None:
    """Raise unless a value is None or of this class."""
    if not isinstance(value, kind | None):
        raise SettingError(f"{name} must be a {kind.__name__}, got {_shown(value)}")


def as_tuple(value: Any, name: str) -> tuple[Any, ...]:
    """The values of a list, a tuple or another iterable that is not text."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise SettingError(f"{name} must be a list of values, got {_shown(value)}")
    return tuple(value)


def as_shares(value: Any, name: str) -> tuple[Any, ...]:
    """One share or several as a tuple; their values are checked with the targets."""
    return (value,) if isinstance(value, int | float) else as_tuple(value, name)


def as_path(value: Any, name: str) -> Path:
    """The path that a public function was given."""
    if not isinstance(value, str | os.PathLike):
        raise SettingError(f"{name} must be a path, got {_shown(value)}")
    return Path(value)


def _shown(value: Any) -> str:
    """A short value itself, else its type."""
    return repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
