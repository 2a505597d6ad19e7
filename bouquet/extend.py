"""All that a package of somebody else's imports: a method, a backbone or a data set is written against these names.

They are imported when they are asked for. A server must not load a device's half of a method, nor a device the
server's, and a manifest, which both read, neither of them: `from bouquet.extend import Method, Options` is quick.

docs/how-to/add-a-strategy.md says what to do with them, and `bouquet.testing` asks a finished method its questions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bouquet.own_packages import PACKAGES, foreign

if TYPE_CHECKING:
    # For editors and type checkers. The same names stand below, and a test compares them.
    # ruff: noqa: I001 - sorted by ruff, every name would take a line of its own.
    from pydantic import Field as Field

    from bouquet.arrays import Array as Array, Arrays as Arrays, ArraySpec as ArraySpec, Specs as Specs
    from bouquet.config import (
        ModelOptions as ModelOptions,
        Options as Options,
        RunConfig as RunConfig,
        numbers as numbers,
        written as written,
    )
    from bouquet.errors import ConfigError as ConfigError
    from bouquet.methods.manifest import Method as Method, PlugIn as PlugIn, Sizes as Sizes
    from bouquet.methods.parts import ServerOptimizerOptions as ServerOptimizerOptions
    from bouquet.needs import bytes_of as bytes_of
    from bouquet.ragged import Ragged as Ragged
    from bouquet.randomness import Draws as Draws, Purpose as Purpose, Words as Words
    from bouquet.packed import PackedArray as PackedArray, PackedRows as PackedRows
    from bouquet.records import Report as Report
    from bouquet.reporting.run_directory import RunDirectory as RunDirectory
    from bouquet.wire import (
        EvaluateReply as EvaluateReply,
        TrainReply as TrainReply,
        Update as Update,
        Weighting as Weighting,
    )
    from client_app.personalization.base import Personalization as Personalization
    from client_app.personalization.round import (
        GLOBAL as GLOBAL,
        PERSONAL as PERSONAL,
        Batch as Batch,
        Changes as Changes,
        Given as Given,
        OwnArrays as OwnArrays,
        Pull as Pull,
        Tensors as Tensors,
        Tuning as Tuning,
        Working as Working,
    )
    from data_partition.catalogue import Counts as Counts, Dataset as Dataset, Download as Download
    from data_partition.readers.raw import RawData as RawData
    from models.backbone import HISTORY as HISTORY, Backbone as Backbone
    from models.sequence import SequenceBackbone as SequenceBackbone
    from strategies.averaging import FCF as FCF, FedAvg as FedAvg, mean_change as mean_change
    from strategies.federation.base import BaseStrategy as BaseStrategy, Extra as Extra
    from strategies.numerics.server_optimizer import ServerOptimizer as ServerOptimizer

_NAMES = {
    # What a method is: a manifest and its settings, which both sides read.
    "bouquet.methods.manifest": "Method PlugIn Sizes",
    "bouquet.methods.parts": "ServerOptimizerOptions",
    "bouquet.config": "ModelOptions Options RunConfig numbers written",
    "pydantic": "Field",
    "bouquet.errors": "ConfigError",
    # Arrays and messages.
    "bouquet.arrays": "Array Arrays ArraySpec Specs",
    "bouquet.needs": "bytes_of",
    "bouquet.ragged": "Ragged",
    "bouquet.randomness": "Draws Purpose Words",
    "bouquet.packed": "PackedArray PackedRows",
    "bouquet.records": "Report",
    "bouquet.wire": "EvaluateReply TrainReply Update Weighting",
    # The server's half.
    "bouquet.reporting.run_directory": "RunDirectory",
    "strategies.averaging": "FCF FedAvg mean_change",
    "strategies.federation.base": "BaseStrategy Extra",
    "strategies.numerics.server_optimizer": "ServerOptimizer",
    # The device's half.
    "client_app.personalization.base": "Personalization",
    "client_app.personalization.round": "GLOBAL PERSONAL Batch Changes Given OwnArrays Pull Tensors Tuning Working",
    "models.backbone": "HISTORY Backbone",
    "models.sequence": "SequenceBackbone",
    # Data sets.
    "data_partition.catalogue": "Counts Dataset Download",
    "data_partition.readers.raw": "RawData",
}
_PLACES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"bouquet.extend has no {name}: it has {', '.join(sorted(_PLACES))}.")
    package = _PLACES[name].partition(".")[0]
    if package in PACKAGES and (sentence := foreign(package)):
        raise ImportError(sentence)
    value = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(_PLACES)
