"""What happens around a method's rounds: nodes come and go, users join and are forgotten, late replies are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.serverapp import Grid

from bouquet.catalogue import Catalogue
from bouquet.reporting.events import event
from strategies.exchange import Exchange
from strategies.membership import Changes, Membership
from strategies.replies import Received

if TYPE_CHECKING:
    from strategies.base import BaseStrategy

# The error of a node that is asked for a user that it no longer hosts: it has news about its users.
_MOVED = "does not live on this node"


class Rounds:
    """Keeps a strategy's roster, and everything that is kept by user, in step with the nodes.

    Args:
        strategy: its roster is there.
        grid: Flower's.
        catalogue: what the server publishes, if it does.
    """

    def __init__(self, strategy: BaseStrategy, grid: Grid, catalogue: Catalogue | None = None) -> None:
        self._strategy = strategy
        self.exchange = Exchange(grid)
        self._membership = Membership(grid, strategy.roster, strategy.series, catalogue)
        self._forgotten = strategy.roster.forgotten

    def begin(self) -> dict[str, Any]:
        """Look who is there before a round, and wait where too few are.

        Returns:
            The round's line about nodes.
        Raises:
            RunFailed: too few users have a node that is there, for longer than `node-timeout`.
        """
        config = self._strategy.config
        look: dict[str, Any] = {"came": [], "left": [], "refused": [], "joined": 0, "forgotten": 0}
        look["late"] = self.exchange.late()

        def handle(changes: Changes) -> None:
            self._apply(changes)
            look["came"] += changes.came
            look["left"] += changes.left
            look["refused"] += [vars(failure) for failure in changes.refused]
            look["joined"] += changes.joined
            look["forgotten"] += len(changes.forgotten)

        # A device that asked to be forgotten between two runs of a series said so when the roster was made.
        if len(gone := self._membership.abandoned(self._forgotten)):
            handle(Changes(forgotten=gone))
        self._membership.await_users(config.min_reply_fraction, config.node_timeout, handle)
        roster = self._strategy.roster
        look["present"] = len(self._membership.nodes - roster.absent)
        look["absent"] = len(self._membership.nodes & roster.absent)
        look["users"] = len(roster.users)
        for name in ("came", "left", "refused"):
            if look[name]:
                event(f"nodes {name}", nodes=look[name])
        return look

    def after(self, received: Received) -> None:
        """Learn from what came of a round's messages."""
        if received.silent:
            event("nodes silent", nodes=received.silent)
            self._membership.set_aside(received.silent)
        for failure in received.failures:
            event("reply refused", **vars(failure))
            if _MOVED in failure.reason:
                self._membership.query(failure.node)
        self._strategy.roster = self._membership.roster

    def _apply(self, changes: Changes) -> None:
        strategy = self._strategy
        if changes.joined:
            strategy.trained = np.concatenate([strategy.trained, np.zeros(changes.joined, dtype=bool)])
            strategy.best.users_joined(changes.joined)
            strategy.roster = self._membership.roster
            strategy.users_joined(changes.joined)
        if len(changes.forgotten):
            strategy.trained = np.delete(strategy.trained, changes.forgotten)
            strategy.best.users_forgotten(changes.forgotten)
            strategy.users_forgotten(changes.forgotten)
            self._membership.forget(changes.forgotten)
        strategy.roster = self._membership.roster
