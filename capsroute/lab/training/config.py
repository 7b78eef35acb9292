"""Settings of a run: typed dataclasses, changed by name, and nothing that is not a field."""

import dataclasses
import difflib
import types
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from ..errors import UserError
from .regime import Regime

SomeConfig = TypeVar("SomeConfig", bound="Config")


class SettingError(UserError, ValueError):
    """A setting that does not exist or does not fit; the message lists the right ones."""


@dataclass(frozen=True, kw_only=True)
class Config(Regime):
    """What all runs have in common. Subclasses add what their data needs."""

    experiment: str
    seed: int = 0
    log_every: int = 50  # steps a row of the log covers
    validate_every: float = 1.0  # epochs
    validate_on: int | None = 5000  # samples at most, always the same; none for all
    train_on: int | None = None
    test_on: int | None = None
    save_every: float = 30.0  # seconds between checkpoints, at least

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {
            "seed": 0,
            "log_every": 1,
            "save_every": 0,
            "validate_on": 1,
            "train_on": 1,
            "test_on": 1,
        }
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and not value >= lowest:
                raise ValueError(f"{name}: expected at least {lowest}, got {value}")
        if not self.validate_every > 0:
            raise ValueError(f"validate_every: expected above 0, got {self.validate_every}")

    def on_everything(self) -> Self:
        """The same run with all of the training set."""
        return self


def change(config: SomeConfig, settings: list[str]) -> SomeConfig:
    """A copy with settings such as `epochs=3` applied, the last of a name winning."""
    kinds = fields_of(config)
    changed = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise SettingError(f"{setting!r}: expected field=value")
        if name not in kinds:
            close = difflib.get_close_matches(name, kinds, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise SettingError(f"{name}: no such field{hint}\n{listing(config)}")
        try:
            changed[name] = parse(text, kinds[name])
        except ValueError:
            raise SettingError(f"{name}: expected {words(kinds[name])}, got {text!r}\n{listing(config)}") from None
    try:
        return dataclasses.replace(config, **changed)
    except ValueError as error:
        raise SettingError(str(error)) from None


def from_dict(kind: type[SomeConfig], values: dict[str, Any]) -> SomeConfig:
    """The config that `dataclasses.asdict` wrote."""
    known = {field.name for field in dataclasses.fields(kind)}
    if values.keys() != known:
        wrong = ", ".join(sorted(values.keys() ^ known))
        raise SettingError(f"the saved settings are those of another version, they differ in: {wrong}")
    return kind(**values)


def fields_of(config: Config) -> dict[str, Any]:
    """The type of every field that may be set."""
    kinds = get_type_hints(type(config))
    return {f.name: kinds[f.name] for f in dataclasses.fields(config) if f.name != "experiment"}


def listing(config: Config) -> str:
    """Every field with its type and value, one a line."""
    lines = [f"  {name} = {getattr(config, name)!r} ({words(kind)})" for name, kind in fields_of(config).items()]
    return "\n".join([f"fields of {config.experiment}:", *lines])


def parse(text: str, kind: Any) -> Any:
    """A value of the type from its text."""
    if get_origin(kind) is types.UnionType:
        if text.lower() == "none":
            return None
        return parse(text, next(k for k in get_args(kind) if k is not types.NoneType))
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"
    return kind(text)


def words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) is types.UnionType:
        return " or ".join("none" if k is types.NoneType else words(k) for k in get_args(kind))
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[kind]
