"""Local training of the users of a node for one round: one question, interchangeable ways to compute the answer."""

from client_app.training.compiled import train_compiled
from client_app.training.loop import train_loop
from client_app.training.stacked import train_stacked
from client_app.training.task import Backend, LocalTask

BACKENDS: dict[str, Backend] = {"loop": train_loop, "torch": train_stacked, "numba": train_compiled}

__all__ = ["BACKENDS", "Backend", "LocalTask"]
