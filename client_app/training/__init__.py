"""Local training of the users of a node for one round: one question, interchangeable ways to compute the answer."""

from bouquet.places import Places
from client_app.training.task import Backend, LocalTask

BACKENDS: Places[Backend] = Places(
    {
        "loop": "client_app.training.loop:train_loop",
        "numpy": "client_app.training.plain:train_plain",
        "torch": "client_app.training.stacked:train_stacked",
        "numba": "client_app.training.compiled:train_compiled",
    }
)

__all__ = ["BACKENDS", "Backend", "LocalTask"]
