"""What the rest of the program must know of a method, said once, by the method.

Nothing here imports a strategy or a device side: a server has no use for the one, a device none for the other, and both
read this. They are named, and imported where they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from bouquet.config import Options, Scalar
from bouquet.errors import ConfigError, MissingPackage
from bouquet.extras import EXTRAS, is_there, missing


@dataclass(frozen=True)
class Sizes:
    """Models of different sizes for groups of users.

    Attributes:
        widths: the embedding size of each group, smallest first.
        nested: whether a group trains every size up to its own.
    """

    widths: tuple[int, ...]
    nested: bool


@dataclass(frozen=True)
class Method:
    """A federated method: a strategy on the server and, where it has one, a side on every device.

    Attributes:
        name: the value of the setting `strategy`.
        title: name and source, as a table of methods shows them.
        options: all its settings, those of both sides; each key begins with the method's name, or is of a part that it
            holds (`bouquet.methods.parts`) or of a plug-in that it builds on.
        strategy: "module:Class", a `BaseStrategy`.
        device: "module:Class", a `Personalization`; None: a device trains the model as it comes.
        private: "module:Class" of the strategy of a run with dp-epsilon, with kind "sums", whose devices give limited
            pairs of items then (a `PairCounter`); None: what users give to its sums has no limit.
        sends, keeps: what leaves a device, and what stays there, in words.
        plug_ins: a personalization may stand before it. Where not, `no_plug_in` says why, with {plug_in} for the other.
        sizes: from its options, the sizes of its groups' models; None: all users have the same model.
        item_table: users recommend with one common item table, or each with its own.
        exchange: what travels where the run leaves it open.
        sequences: it works with sequence models.
        alone: the settings in which every user trains as in this method, and nothing is shared; None: there is nothing
            to train.
        kind: what is learned from. "gradients": devices train a model, a `Personalization` if they have a side of
            their own. "sums": the server makes a model of sums over users, and devices compute what they add to
            these; `options` are a `ModelOfSums` and `device` names a `Recommender`, which needs nothing but numpy: a
            `Counter` of cells, given once, or a `Solver`, asked anew in every round.
        defaults: settings of every run that have another default with this method.
        seedless: another seed gives the same numbers.
        sums_only: the server needs no more of users than sums over them, with weights that it knows before training:
            what can be masked, and what a limit on each user and noise on the sum make private.
        attacks: with kind "sums", the values of `attack` that its devices know; of a trained model all are known.
        revision: raised when the same settings give other numbers, so that nobody takes older ones for these.
        compared_by: the papers of other methods here that have it as a row of a table.
    """

    name: str
    title: str
    options: type[Options]
    strategy: str
    device: str | None = None
    private: str | None = None
    sends: str = "changes of all shared arrays"
    keeps: str = "the user embedding"
    plug_ins: bool = True
    no_plug_in: str = (
        "{name} already decides how a device uses its item table, so it cannot be combined with personalization "
        "'{plug_in}'. Choose one of them."
    )
    sizes: Callable[[Any], Sizes] | None = None
    item_table: Literal["common", "own"] = "common"
    exchange: Literal["all", "embedding"] = "all"
    sequences: bool = True
    alone: Mapping[str, Scalar] | None = field(default_factory=lambda: {"strategy": "local"})
    kind: Literal["gradients", "sums"] = "gradients"
    defaults: Mapping[str, Scalar] = field(default_factory=dict)
    seedless: bool = False
    sums_only: bool = False
    revision: int = 1
    attacks: tuple[str, ...] = ()
    compared_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlugIn:
    """A device-side method that can stand before others, nearer to the arrays that travel.

    Attributes:
        name: the value of the setting `personalization`.
        title: name and source.
        options: all its settings; each key begins with its name.
        device: "module:Class", a `Personalization`.
        sends, keeps: what it adds to what leaves a device, and to what stays there.
        revision: as that of a `Method`.
    """

    name: str
    title: str
    options: type[Options]
    device: str
    sends: str
    keeps: str
    revision: int = 1


def class_at(place: str) -> Any:
    """The class that "module:Class" names.

    Raises:
        ConfigError: there is none, or its module cannot be imported.
    """
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, SyntaxError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS and not is_there(error.name):
            raise MissingPackage(missing(error.name, place)) from None
        raise ConfigError(f"A manifest names '{place}', which cannot be imported: {error}.") from error
