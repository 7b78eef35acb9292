"""Settings of a run: typed dataclasses whose fields are set by name."""

import dataclasses
import difflib
import hashlib
import json
import types
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from ..errors import UserError
from .regime import Regime

SomeConfig = TypeVar("SomeConfig", bound="Config")


class SettingError(UserError, ValueError):
    """Report a setting that does not exist or has a wrong value."""


@dataclass(frozen=True, kw_only=True)
class Config(Regime):
    """Settings that all runs share; subclasses add those of their data."""

    experiment: str
    seed: int = 0
    log_every: int = 50  # steps per row of the log
    validate_every: float = 1.0  # epochs
    validate_on: int | None = 5000  # at most so many samples, the same each time; none for all
    train_on: int | None = None
    test_on: int | None = None
    save_every: float = 30.0  # least seconds between checkpoints

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_minimum(seed=0, log_every=1, save_every=0, validate_on=1, train_on=1, test_on=1)
        self.check("validate_every", self.validate_every > 0, "above 0")

    def sample_limit(self, split: str) -> int | None:
        return {"train": self.train_on, "validation": self.validate_on, "test": self.test_on}[split]


def change_settings(config: SomeConfig, settings: list[str]) -> SomeConfig:
    """Return a copy with settings such as `epochs=3` applied; of two for the same field, the last one counts."""
    types_by_name = get_type_hints(type(config))
    del types_by_name["experiment"]
    changed = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise SettingError(f"{setting!r}: expected FIELD=VALUE")
        if name not in types_by_name:
            close = difflib.get_close_matches(name, types_by_name, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(types_by_name)}"
            raise SettingError(f"{name}: {config.experiment} has no such field; {hint}")
        try:
            changed[name] = _parse(text, types_by_name[name])
        except (ValueError, KeyError):
            raise SettingError(f"{name}: expected {_describe(types_by_name[name])}, got {text!r}") from None
    try:
        return dataclasses.replace(config, **changed)
    except ValueError as error:
        raise SettingError(str(error)) from None


def changed_settings(config: Config) -> dict[str, Any]:
    """Return the settings that differ from the defaults of their fields."""
    fields = dataclasses.fields(config)
    return {f.name: getattr(config, f.name) for f in fields if getattr(config, f.name) != f.default}


def hash_settings(values: dict[str, Any]) -> str:
    """Return a short hash of settings, whatever their order."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def check_types(kind: type[Config], values: dict[str, Any]) -> None:
    """Raise an error that names a value whose type is not that of the config's field."""
    for name, wanted in get_type_hints(kind).items():
        if not _fits(values[name], wanted):
            raise SettingError(f"{name}: expected {_describe(wanted)}, got {values[name]!r}")


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is types.UnionType:
        return any(_fits(value, one) for one in get_args(kind))
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    return type(value) in ((int, float) if kind is float else (kind,))


def _parse(text: str, kind: Any) -> Any:
    """Convert the text of a setting to its type; raises ValueError if it does not fit."""
    if get_origin(kind) is types.UnionType:
        return None if text.lower() == "none" else _parse(text, get_args(kind)[0])
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError
        return text
    if kind is bool:
        return {"true": True, "false": False}[text.lower()]
    return kind(text)


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) is types.UnionType:
        return f"{_describe(get_args(kind)[0])} or none"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[kind]
