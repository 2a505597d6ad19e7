"""The configuration of a run: typed, documented, checked, with errors that a person can act on.

Keys are kebab-case, as in `[tool.flwr.app.config]`; fields are the same words with underscores. The settings
that every run has are `RunConfig`; a method's own settings are an `Options` class beside that method. The
command line checks all of them together; a server or a device reads the classes that concern it with `own`.

options      a group of settings
data         those of data: which, and what is held out of it
run          those that every run has: data, model, training, rounds
protection   those of what protects users, and of who attacks
reading      from plain keys and values to settings that are checked
names        what a wrong name is told
"""

from bouquet.config.data import DataOptions
from bouquet.config.names import did_you_mean, lookup, refuse_broken, wrong_options
from bouquet.config.options import Options, Scalar, numbers, or_same, written
from bouquet.config.protection import (
    AttackOptions,
    DifferentialPrivacyOptions,
    PrivacyOptions,
    RobustOptions,
    SecureSumsOptions,
)
from bouquet.config.reading import Settings, check, defaults, own, parsed
from bouquet.config.run import CIRCUMSTANCES, ModelOptions, RoundOptions, RunConfig, TrainingOptions

__all__ = [
    "CIRCUMSTANCES",
    "AttackOptions",
    "DataOptions",
    "DifferentialPrivacyOptions",
    "ModelOptions",
    "Options",
    "PrivacyOptions",
    "RobustOptions",
    "RoundOptions",
    "RunConfig",
    "Scalar",
    "SecureSumsOptions",
    "Settings",
    "TrainingOptions",
    "check",
    "defaults",
    "did_you_mean",
    "lookup",
    "numbers",
    "or_same",
    "own",
    "parsed",
    "refuse_broken",
    "written",
    "wrong_options",
]
