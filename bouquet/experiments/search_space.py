"""What is searched: the values that a setting can take, and how settings hang together.

learning-rate = {log-uniform = [0.01, 1.0]}
server-optimizer = {choices = ["adam", "sgd"]}

# Drawn where another searched setting has a value; elsewhere it has one of its own, here that of the plain mean.
server-learning-rate = {log-uniform = [0.003, 0.3], if = {server-optimizer = "adam"}, else = 1.0}

# What is drawn is a factor on another setting, which may be searched itself.
plgc-learning-rate = {log-uniform = [0.01, 100.0], times = "learning-rate"}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bouquet.config import Scalar, did_you_mean
from bouquet.errors import ConfigError

KINDS = ("log-uniform", "uniform", "integer", "choices")
_BESIDE = ("times", "if", "else")


@dataclass(frozen=True)
class Parameter:
    """The values that a setting can take.

    Attributes:
        kind: of KINDS.
        values: of a range the lowest and the highest; of choices all.
        times: the setting that what is drawn is a factor on; "": it is the value itself.
        condition: the setting that must have a value for this one to be drawn, and the value; None: it always is.
        otherwise: what this setting is where it is not drawn.
    """

    kind: str
    values: tuple[Scalar, ...]
    times: str = ""
    condition: tuple[str, Scalar] | None = None
    otherwise: Scalar | None = None

    def has(self, value: Scalar) -> bool:
        """Whether a value is one of these."""
        if self.kind == "choices" or isinstance(value, str | bool):
            return any(value == one and type(value) is type(one) for one in self.values)
        low, high = self.values
        whole = self.kind != "integer" or isinstance(value, int)
        return whole and float(low) <= value <= float(high)

    @property
    def shown(self) -> str:
        """As it is told to a reader."""
        if self.kind == "choices":
            text = " | ".join(map(str, self.values))
        else:
            text = f"{self.values[0]:g} to {self.values[1]:g}{', log' * (self.kind == 'log-uniform')}"
        if self.times:
            text += f", times {self.times}"
        if self.condition is not None:
            text += f", with {self.condition[0]} = {self.condition[1]}; else {self.otherwise}"
        return text

    @property
    def written(self) -> dict[str, Any]:
        """As it stands in a file."""
        found: dict[str, Any] = {self.kind: list(self.values)}
        if self.times:
            found["times"] = self.times
        if self.condition is not None:
            found |= {"if": dict([self.condition]), "else": self.otherwise}
        return found


Space = Mapping[str, Parameter]


def draw(space: Space, one: Callable[[str, Parameter], Scalar]) -> dict[str, Scalar]:
    """What is drawn for one trial: everything but what its condition leaves out.

    Args:
        one: draws a value of a parameter.
    """
    drawn = {key: one(key, parameter) for key, parameter in space.items() if parameter.condition is None}
    for key, parameter in space.items():
        if parameter.condition is not None and drawn[parameter.condition[0]] == parameter.condition[1]:
            drawn[key] = one(key, parameter)
    return {key: drawn[key] for key in space if key in drawn}


def is_whole(space: Space, drawn: Mapping[str, Scalar]) -> bool:
    """Whether these are all values of one trial, and no others."""
    try:
        return draw(space, lambda key, _: drawn[key]).keys() == drawn.keys()
    except KeyError:
        return False


def settled(space: Space, drawn: Mapping[str, Scalar], settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The searched settings of a trial, of what was drawn for it.

    Args:
        settings: of the row, for factors on what is not searched.
    """
    found: dict[str, Scalar] = {}
    for key, parameter in space.items():
        if key not in drawn:
            assert parameter.otherwise is not None
            found[key] = parameter.otherwise
        elif parameter.times:
            other = drawn if parameter.times in drawn else settings
            found[key] = float(drawn[key]) * float(other[parameter.times])
        else:
            found[key] = drawn[key]
    return found


def without_search(space: Space, settings: Mapping[str, Scalar], same_as: Mapping[str, str]) -> dict[str, Scalar]:
    """What would have to be drawn for the settings that the row has without a search, as far as it can be.

    Args:
        same_as: the settings of which 0 means "the same as" another, and that one: a factor of 1 on it.
    """
    found: dict[str, Scalar] = {}
    for key, parameter in space.items():
        value = settings[key]
        if parameter.times:
            other = float(settings[parameter.times])
            if value == 0 and same_as.get(key) == parameter.times:
                value = 1.0
            else:
                value = float(value) / other if other else math.inf
        holds = parameter.condition is None or settings[parameter.condition[0]] == parameter.condition[1]
        if holds and parameter.has(value):
            found[key] = value
    return found


def space_of(given: Mapping[str, Any], settings: Mapping[str, Scalar]) -> dict[str, Parameter]:
    """A space as a file has it, checked but for what the settings themselves allow.

    Args:
        settings: of the row, all of them.
    Raises:
        ConfigError: something is no range and no choices, or hangs on what it cannot hang on.
    """
    space = {key: _parameter(key, values) for key, values in given.items()}
    for key, parameter in space.items():
        if parameter.times:
            other = space.get(parameter.times)
            value = settings.get(parameter.times)
            if other is not None and (other.times or other.condition or other.kind == "choices"):
                raise ConfigError(
                    f"'{key}' is a factor on '{parameter.times}', which must then be a range of its own, without "
                    "'times' and 'if'."
                )
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise ConfigError(f"'{key}' cannot be a factor on '{parameter.times}': this row has no such number.")
        if parameter.condition is not None:
            named, value = parameter.condition
            other = space.get(named)
            if other is None or other.kind != "choices" or other.condition or not other.has(value):
                raise ConfigError(
                    f"'{key}' is searched if '{named}' is {value!r}, so '{named}' must be searched by choices, of "
                    "which that is one."
                )
    return space


def _parameter(key: str, given: Any) -> Parameter:
    """Raises: ConfigError: what is given is no range and no choices."""
    ways = [name for name in given if name not in _BESIDE] if isinstance(given, dict) else []
    kind = ways[0] if len(ways) == 1 else None
    if kind is not None and kind not in KINDS:
        raise ConfigError(
            f"'{key}' cannot be searched by '{kind}'.{did_you_mean(kind, KINDS)} Known: {', '.join(KINDS)}."
        )
    if kind is None:
        raise ConfigError(
            f"'{key}' must be searched by one of log-uniform, uniform and integer, each = [lowest, highest], or by "
            f"choices = [one, other, …], not by {given!r}."
        )
    values = _values(key, kind, given[kind])
    times = given.get("times", "")
    if "times" in given and (not isinstance(times, str) or kind not in ("log-uniform", "uniform")):
        raise ConfigError(f"'times' of '{key}' must name a setting, and what is drawn be log-uniform or uniform.")
    return Parameter(kind, values, times, *_condition(key, given))


def _values(key: str, kind: str, values: Any) -> tuple[Scalar, ...]:
    if kind == "choices":
        if (
            not isinstance(values, list)
            or not all(isinstance(value, str | int | float | bool) for value in values)
            or len(set(map(repr, values))) < max(2, len(values))
        ):
            raise ConfigError(f"the choices of '{key}' must be two or more different values, not {values!r}.")
        return tuple(values)
    wanted = "whole numbers" if kind == "integer" else "numbers"
    allowed = int if kind == "integer" else int | float
    numbers = isinstance(values, list) and len(values) == 2
    numbers = numbers and all(isinstance(v, allowed) and not isinstance(v, bool) and math.isfinite(v) for v in values)
    if not numbers or not values[0] < values[1]:
        raise ConfigError(f"'{key}' needs {kind} = [lowest, highest], two {wanted} in this order, not {values!r}.")
    if kind == "log-uniform" and values[0] <= 0:
        raise ConfigError(f"'{key}' is searched log-uniform, so its lowest value must be above 0, not {values[0]!r}.")
    return tuple(values) if kind == "integer" else (float(values[0]), float(values[1]))


def _condition(key: str, given: Mapping[str, Any]) -> tuple[tuple[str, Scalar] | None, Scalar | None]:
    condition, otherwise = given.get("if"), given.get("else")
    if condition is None and otherwise is None:
        return None, None
    one = isinstance(condition, dict) and len(condition) == 1
    if not one or not isinstance(otherwise, str | int | float | bool):
        raise ConfigError(f"'{key}' needs both if = {{setting = value}} and else = the value that it has otherwise.")
    assert isinstance(condition, dict)
    return next(iter(condition.items())), otherwise
