"""What of a completed run is kept, and what its numbers depend on beside its settings.

It knows the models of pooled data, which a caller's process never loads; what only reads cells is in `kept_cells`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bouquet.config import CIRCUMSTANCES, Scalar
from bouquet.experiments.kept_cells import KeptCell
from bouquet.methods import METHODS, PLUG_INS
from bouquet.reporting.run_directory import RunDirectory
from models.centralized import REVISIONS

# Raised when the same settings give other numbers with every method; those of one method stand in its manifest.
REVISION = 1


def revision_of(settings: Mapping[str, Scalar], model: str = "") -> str:
    """What the numbers of a run depend on beside its settings: revisions of the program, and of a method and a plug-in.

    Args:
        model: of pooled data, which has one of its own; "": a federated run.
    """
    parts = [str(REVISION)]
    if model in REVISIONS:
        parts.append(str(REVISIONS[model]))
    if not model:
        method, plug_in = METHODS.get(str(settings["strategy"])), PLUG_INS.get(str(settings["personalization"]))
        parts += [str(part.revision) for part in (method, plug_in) if part is not None]
    return ".".join(parts)


def of_run(directory: RunDirectory) -> KeptCell:
    """The cell of a completed run.

    Raises:
        DataError: its files are missing or damaged.
    """
    users, values = directory.read_users()
    sizes, order = directory.read_sizes(), np.argsort(users)
    config = {key: value for key, value in directory.read_config().items() if key not in CIRCUMSTANCES}
    engine = directory.engine()
    return KeptCell(
        settings=config,
        engine=engine,
        versions=directory.versions(),
        revision=revision_of(config, str(engine.get("model", ""))),
        summary=directory.read_summary(),
        users=users[order],
        sizes=None if sizes is None else sizes[order],
        values=values[order],
    )
