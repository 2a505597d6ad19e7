"""A group of settings, and the kinds of fields that are not in Pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Scalar = str | int | float | bool


def kebab(name: str) -> str:
    """A field's name as its key is written."""
    return name.replace("_", "-")


class Options(BaseModel):
    """A group of settings; unknown keys, wrong types and values out of range are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=kebab, populate_by_name=True, allow_inf_nan=False
    )

    formerly: ClassVar[Mapping[str, str]] = {}
    """Keys that these settings once had, and those that they have."""

    def to_flat(self) -> dict[str, Scalar]:
        """The settings as kebab-case keys and plain values."""
        return self.model_dump(by_alias=True)

    def check_run(self, run: Any) -> None:
        """Refuse what cannot go together with the settings of the run that these belong to; by default nothing.

        What cannot go together within one class is refused where that class is made.

        Args:
            run: `RunConfig`, which is made of groups such as this one and so has no name here.
        Raises:
            ConfigError: one sentence.
        """


def written(default: str, pattern: str, form: str, description: str) -> Any:
    """A field of text that has a form.

    Args:
        pattern: the form as a regular expression.
        form: the same in words, after "must be".
    """
    return Field(default, pattern=pattern, json_schema_extra={"form": form}, description=description)


def or_same(other: str, description: str, default: float = 0.0) -> Any:
    """A field of a number that is that of another setting where it is 0.

    Args:
        other: the key of that setting.
    """
    text = f"{description}; 0: the same as {other}."
    return Field(default, ge=0, json_schema_extra={"same-as": other}, description=text)


def numbers(default: str, separator: str, description: str) -> Any:
    """A field of text that is made of whole numbers above 0."""
    form = f"whole numbers above 0 with '{separator}' between them, such as '{default}'"
    return written(default, rf"^[1-9][0-9]*({separator}[1-9][0-9]*)*$", form, description)
