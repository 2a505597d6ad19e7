"""What happens around a method's rounds: nodes come and go, users join and are forgotten, late replies are dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.serverapp import Grid

from bouquet.catalogue import Catalogue
from bouquet.reporting.events import event
from strategies.federation.exchange import Exchange
from strategies.federation.hooks import Hooks
from strategies.federation.membership import Changes, Membership
from strategies.federation.replies import Received

# A device takes some seconds to start a process for a message.
_FAREWELL_SECONDS = 60.0
# The error of a node that is asked for a user that it no longer hosts: it has news about its users.
_MOVED = "does not live on this node"


class Nodes:
    """Keeps a strategy's roster, and everything that is kept by user, in step with the nodes.

    Args:
        strategy: its roster is there.
        grid: Flower's.
        catalogue: what the server publishes, if it does.
    """

    def __init__(self, strategy: Hooks, grid: Grid, catalogue: Catalogue | None = None) -> None:
        self._strategy = strategy
        self.exchange = Exchange(grid, strategy.config.reply_poll_interval)
        self._membership = Membership(
            grid,
            strategy.roster,
            strategy.series,
            catalogue,
            update=strategy.update,
            tells=strategy.everything_told(),
            repeats=strategy.config.repeats == "keep",
            cells=strategy.summed,
            most_users=strategy.most_users,
        )

    def begin(self, server_round: int) -> dict[str, Any]:
        """Look who is there before a round, and wait where too few are.

        Returns:
            The round's line about nodes.
        Raises:
            RunFailed: too few users have a node that is there, for longer than `node-timeout`.
        """
        look: dict[str, Any] = {"came": [], "left": [], "refused": [], "joined": 0, "forgotten": 0, "repeated": 0}
        look["late"] = self.exchange.late()
        self._look(server_round, look)
        return look

    def repeat(self, server_round: int, look: dict[str, Any]) -> None:
        """The same in the middle of a round, whose messages are sent once more; added to the round's line.

        Raises:
            RunFailed: as `begin`.
        """
        look["repeated"] += 1
        look["late"] += self.exchange.late()
        self._look(server_round, look)

    def _look(self, server_round: int, look: dict[str, Any]) -> None:
        config = self._strategy.config
        before = {name: len(look[name]) for name in ("came", "left", "refused")}

        def handle(changes: Changes) -> None:
            self._apply(changes)
            look["came"] += changes.came
            look["left"] += changes.left
            look["refused"] += [vars(failure) for failure in changes.refused]
            look["joined"] += changes.joined
            look["forgotten"] += len(changes.forgotten)

        # A device that asked to be forgotten between two runs of a series said so when the roster was made.
        if len(gone := self._membership.asked_at_first()):
            handle(Changes(forgotten=gone, withdrawn=dict(self._membership.roster.withdrawn)))
        self._membership.await_users(server_round, config.min_reply_fraction, config.node_timeout, handle)
        roster = self._strategy.roster
        nodes = self._membership.nodes
        look["present"] = len(nodes - roster.absent - roster.resting)
        look["absent"] = len(nodes & roster.absent)
        look["resting"] = sorted((nodes & roster.resting) - roster.absent)
        look["users"] = len(roster.users)
        for name, count in before.items():
            if new := look[name][count:]:
                event(f"nodes {name}", nodes=new)

    def confirm(self) -> None:
        """After a round, what is kept of it being written: say to nodes that the users they had forgotten are."""
        self._membership.confirm()

    def close(self) -> None:
        """After the last round: wait, not for long, until that has arrived."""
        self._membership.await_confirmed(min(self._strategy.config.node_timeout, _FAREWELL_SECONDS))

    def after(self, received: Received, kind: str, server_round: int) -> None:
        """Learn from what came of a round's messages of one kind."""
        if received.silent:
            event("nodes silent", nodes=received.silent)
            self._membership.set_aside(received.silent)
        if self.exchange.timed_out:
            self._membership.waited_in_vain(received.silent, kind, server_round)
        self._membership.answered(received.valid, kind)
        for failure in received.failures:
            event("reply refused", **vars(failure))
            if _MOVED in failure.reason:
                self._membership.query(failure.node)
        self._strategy.roster = self._membership.roster

    def _apply(self, changes: Changes) -> None:
        strategy = self._strategy
        if changes.joined:
            strategy.versions, strategy.kept_versions = (
                np.concatenate([rounds, np.zeros(changes.joined, dtype=np.int64)])
                for rounds in (strategy.versions, strategy.kept_versions)
            )
            strategy.best.users_joined(changes.joined)
            strategy.roster = self._membership.roster
            strategy.users_joined(changes.joined)
        for user in changes.forgotten.tolist():
            strategy.withdraw(user, changes.withdrawn.get(int(strategy.roster.users[user]), {}))
        if len(changes.forgotten):
            strategy.versions = np.delete(strategy.versions, changes.forgotten)
            strategy.kept_versions = np.delete(strategy.kept_versions, changes.forgotten)
            strategy.best.users_forgotten(changes.forgotten)
            strategy.users_forgotten(changes.forgotten)
            self._membership.forget(changes.forgotten)
        strategy.roster = self._membership.roster
