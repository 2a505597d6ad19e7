"""Differential privacy of what a run publishes, user by user, in the central model.

The server is trusted: it reads what devices send, adds noise to every sum before anything is made of it, and publishes
what follows from noisy sums alone. In round t:

    sample    every user of the run on its own with probability q = `fraction-train` (Poisson)
    limit     a device scales what it adds down to L2 norm C, over all arrays together; every user weighs 1
    noise     S̃ = Σ_u Δ_u + N(0, (z C)²) on every number, whether anybody touched it or not
    mean      S̃ / (q n), with n the users that were there when the run began, and not those of the round

    C ← C exp(-η (b̃ - γ))   with a quantile γ: b̃ is the noisy share of users within C (Andrew et al., 2021)

What is spent is written to `privacy.json` before a sum is used, so that no crash makes a release free: a round that is
computed again costs again.

How noise is drawn and added says `noise`; what is written of a budget, `ledger`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.accounting import Releases, noise_multiplier
from bouquet.arrays import Specs
from bouquet.config import RunConfig
from bouquet.errors import ConfigError
from bouquet.evaluation.metrics import CANDIDATE_SETS, METRICS, PARTS
from bouquet.methods import METHODS
from bouquet.packed import PackedArray
from bouquet.randomness import Purpose, Streams, draw, streams, uniforms
from bouquet.records import Report
from bouquet.reporting.events import event
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import WITHIN, TrainReply
from strategies.federation.best_round import Means
from strategies.federation.ledger import ADJACENCY, LEDGER, Ledger
from strategies.federation.noise import fresh, noisy
from strategies.federation.roster import Roster

# Andrew et al. (2021): rate of the limit, and users of a round by standard deviation of the noise on their votes.
_CLIP_RATE, _VOTES_PER_NOISE = 0.2, 20.0
# What float32 and sums in float64 may be off by.
_ROOM = 1 + 1e-6
# Which arrays share a round's stream: votes or metrics, and from there on those of the model.
_TOLD, _MODEL = 0, 1


class PrivateSums:
    """The noise of a run, and its budget.

    Args:
        config: the run's.
        directory: of its results, where the ledger is.
    Raises:
        ConfigError: the method needs more of users than sums over them.
    """

    def __init__(self, config: RunConfig, directory: RunDirectory) -> None:
        method = METHODS.get(config.strategy)
        if method is not None and not method.sums_only:
            raise ConfigError(
                f"{config.strategy} needs more of users than sums over them, so dp-epsilon and dp-noise-multiplier "
                "cannot make it private: take a method of sums, or leave them out."
            )
        if method is not None and method.kind == "sums" and config.attack_fraction > 0:
            raise ConfigError(
                f"Of {config.strategy} it is known what liars say in its own sums, and not in a private one: leave "
                "attack-fraction or dp-epsilon and dp-noise-multiplier out."
            )
        if method is not None and method.kind == "sums" and config.dp_noise_from == "nodes":
            raise ConfigError(
                f"{config.strategy} publishes what the server makes of a noisy matrix, and only the server adds that "
                "noise today: leave dp-noise-from out."
            )
        self._config, self._directory = config, directory
        self._seed: int | None = None
        self._limit = 0.0
        self.ledger: Ledger

    # -- before the first round ---------------------------------------------------------------------------------------

    def begin(self, simulated: bool, users: int, kept: Mapping[str, NDArray[Any]], done: int, num_rounds: int) -> int:
        """Plan the noise, or take up what was spent.

        Args:
            simulated: noise and samples come from the seed, so that figures can be had again; else from nowhere.
            users: n.
            kept: what `arrays` gave to the checkpoint that the run goes on from.
            done: rounds that it has.
        Returns:
            the last round that the budget allows, at most `num_rounds`.
        Raises:
            ConfigError: the budget is spent, or not enough for one round.
        """
        config = self._config
        self._seed = config.seed if simulated else None
        written = self._directory.read_json(LEDGER)
        if written:
            self.ledger = Ledger(**{name: written[name] for name in Ledger.__dataclass_fields__})
            if kept:
                rounds, evaluations, clip = (np.ravel(kept[name])[0] for name in ("rounds", "evaluations", "clip"))
                self.ledger.rounds = max(self.ledger.rounds, int(rounds))
                self.ledger.evaluations = max(self.ledger.evaluations, int(evaluations))
                self.ledger.clip = float(clip)
        elif kept:
            plain = vars(Ledger(0, 0.0, 0.0, 0.0, 0.0, 0.0))
            self.ledger = Ledger(**{name: type(value)(np.ravel(kept[name])[0]) for name, value in plain.items()})
        else:
            self.ledger = self._planned(users, num_rounds, 0.0 if simulated else config.dp_metrics_noise)
        last = min(num_rounds, done + self._rounds_left(num_rounds - done))
        if last <= done < num_rounds:
            spent = self.ledger
            raise ConfigError(
                f"The budget allows no further round: after {spent.rounds} rounds ε is {self.epsilon:.4g}, one more "
                f"would be {spent.epsilon(spent.rounds + 1, spent.next_evaluations):.4g}, and dp-epsilon is "
                f"{config.dp_epsilon:g} at δ = {spent.delta:.3g}."
            )
        if last < num_rounds:
            event("budget ends the run", round=last, epsilon=config.dp_epsilon)
        return last

    def _planned(self, users: int, rounds: int, metrics_noise: float) -> Ledger:
        config = self._config
        delta = config.dp_delta or 1.0 / max(users, 2)
        noise = config.dp_noise_multiplier
        if not noise:
            others = [Releases(metrics_noise)] if metrics_noise else []
            noise = noise_multiplier(config.dp_epsilon, delta, rounds, config.fraction_train, others)
            if config.dp_noise_from == "nodes":
                raise ConfigError(
                    f"Nodes read from dp-noise-multiplier how much noise they add: with {users} users, {rounds} rounds "
                    f"and dp-epsilon = {config.dp_epsilon:g} set dp-noise-multiplier = {noise:.4g}."
                )
        return Ledger(users, delta, noise, config.fraction_train, metrics_noise, config.dp_clip)

    def _rounds_left(self, wanted: int) -> int:
        """How many of the wanted rounds the budget still allows."""
        budget, planned = self._config.dp_epsilon, not self.ledger.rounds and not self._config.dp_noise_multiplier
        return wanted if planned or not budget else self.ledger.rounds_within(budget, wanted)

    # -- in a round ---------------------------------------------------------------------------------------------------

    @property
    def simulated(self) -> bool:
        """Whether the noise comes from the seed, which whoever reads the settings knows."""
        return self._seed is not None

    @property
    def epsilon(self) -> float:
        """What is spent."""
        return self.ledger.epsilon(self.ledger.rounds, self.ledger.evaluations)

    @property
    def expected(self) -> float:
        """q n: users that a round has on average, and what its sums are divided by."""
        return self.ledger.sampling * self.ledger.users

    def sample(self, roster: Roster, server_round: int) -> NDArray[np.int64]:
        """This round's users, each drawn on its own; those that are not there are drawn too, and give nothing."""
        if self.ledger.sampling == 1.0:
            return np.arange(len(roster.users))
        if self._seed is None:
            found = draw(fresh(), np.arange(len(roster.users)))
        else:
            own = streams(self._seed, roster.users, server_round, Purpose.PRIVATE_SAMPLING)
            found = draw(own, np.zeros(len(own), np.int64))
        return np.flatnonzero(uniforms(found) < self.ledger.sampling)

    def reports(self) -> dict[str, Report]:
        """What users tell beside their update."""
        return {WITHIN: Report((), 0.0, 1.0)} if self._config.dp_clip_quantile else {}

    def clip_to_send(self) -> float:
        """The limit, where it is not that of the settings; else 0."""
        return self.ledger.clip if self._config.dp_clip_quantile else 0.0

    def refusal(self, reply: TrainReply) -> str:
        """Why a sum of limited changes cannot be of so many users, or ""."""
        square = sum(float((part.values.astype(np.float64) ** 2).sum()) for part in reply.sums.values())
        most = self.ledger.clip * len(reply.users) * _ROOM
        return (
            "" if square <= most**2 else f"its sum is longer than {len(reply.users)} users within dp-clip can make it"
        )

    def summed(self, server_round: int, replies: Sequence[TrainReply], specs: Specs) -> TrainReply:
        """All replies of a round as one, with noise; the round is spent."""
        self.spend_round()
        config, ledger = self._config, self.ledger
        noise, stream = ledger.noise, self._stream(server_round)
        if config.dp_clip_quantile:
            noise = self._follow_quantile(replies, stream)
        sums = {}
        for number, (name, spec) in enumerate(specs.items(), start=_MODEL):
            total = np.zeros(spec.shape)
            for reply in replies:
                reply.sums[name].add_to(total, reply.factor)
            # What nodes have added is in the sum already, and there is no sum without it.
            made = total if config.noise_of_nodes else noisy(total, noise * self._limit, stream, number)
            sums[name] = PackedArray(None, made)
        users = np.concatenate([np.zeros(0, np.uint64), *(reply.users for reply in replies)])
        nothing = np.full(len(users), np.nan, np.float32)
        return TrainReply(users, nothing, np.zeros(len(users), np.int64), sums=sums, weight=self.expected)

    def noise_on(self, values: NDArray[np.float64], scale: float, server_round: int) -> NDArray[np.float64]:
        """The values with noise z * scale on each; the round is spent."""
        self.spend_round()
        return noisy(values, self.ledger.noise * scale, self._stream(server_round), _MODEL)

    def spend_round(self) -> None:
        """Write down that a noisy sum is about to be made."""
        self._limit = self.ledger.clip
        self.ledger.rounds += 1
        self._write()

    def means(self, values: NDArray[np.float64], server_round: int) -> Means:
        """Noisy means of all users' metrics; an evaluation is spent.

        Of each user goes into the sums, beside its metrics (0 where it has nothing held out), whether it has: numbers
        from 0 to 1, so that a user changes the sums by at most the root of how many these are.

        Args:
            values: [n, parts, candidate sets, metrics].
        """
        self.ledger.evaluations += 1
        self._write()
        known = ~np.isnan(values).all(axis=(2, 3))
        flat = np.concatenate([np.nan_to_num(values).reshape(len(values), -1), known.astype(float)], axis=1)
        deviation = self.ledger.metrics_noise * math.sqrt(flat.shape[1])
        found = noisy(np.clip(flat, 0, 1).sum(axis=0), deviation, self._stream(server_round), _TOLD)
        counts = np.maximum(found[-len(PARTS) :], 1.0)
        means = np.clip(found[: -len(PARTS)].reshape(values.shape[1:]) / counts[:, None, None], 0, 1)
        return {
            part: {
                candidates: dict(zip(METRICS, means[p, c].tolist(), strict=True))
                for c, candidates in enumerate(CANDIDATE_SETS)
            }
            for p, part in enumerate(PARTS)
        }

    # -- what is said of it -------------------------------------------------------------------------------------------

    def line(self) -> dict[str, Any]:
        """What the round's line in `metrics.jsonl` says."""
        return {"epsilon": self.epsilon, "delta": self.ledger.delta, "spent_rounds": self.ledger.rounds}

    def published(self, line: Mapping[str, Any], specs: Specs) -> dict[str, Any]:
        """What a round's line says instead of what was counted: in a simulation that stands beside it, unpaid.

        How many users were drawn, what they lost and how much they sent depends on who is there, and on what they have.
        """
        if self.simulated:
            return {"privacy": self.line()}
        whole, expected = float(4 * sum(spec.size for spec in specs.values())), round(self.expected)
        sizes = {**line["bytes"], "up_per_user": whole, "wire_up": whole * expected}
        return {"privacy": self.line(), "loss": math.nan, "users": expected, "asked": expected, "bytes": sizes}

    def results(self) -> dict[str, Any]:
        """What `summary.json` says."""
        ledger = self.ledger
        return {
            **self.line(),
            "budget": self._config.dp_epsilon or None,
            "neighbours": ADJACENCY,
            "noise_multiplier": ledger.noise,
            "sampling": ledger.sampling,
            "clip": ledger.clip,
            "clip_quantile": self._config.dp_clip_quantile or None,
            "noise_from": self._noise_from(),
            "metrics": "measured by the experimenter, outside the budget"
            if self.simulated
            else "noisy means, within the budget",
        }

    def _noise_from(self) -> str:
        if self._config.noise_of_nodes:
            return "nodes, each its share under masks"
        return "the seed, to measure: it protects nobody" if self.simulated else "secret draws"

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint keeps."""
        return {name: np.array(value) for name, value in vars(self.ledger).items()}

    # -- noise --------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        self._directory.write_json(LEDGER, {**vars(self.ledger), **self.line()})

    def _stream(self, server_round: int) -> Streams:
        if self._seed is None:
            return fresh()
        return streams(self._seed, np.zeros(1, np.uint64), server_round, Purpose.PRIVATE_NOISE)

    def _follow_quantile(self, replies: Sequence[TrainReply], stream: Streams) -> float:
        """Move the limit by the users' votes; returns the noise multiplier that is left for their changes.

        A vote counts as ±1/2, so that a user changes their sum by 1/2, and both sums together cost as one with z:
        1/z² = 1/z_Δ² + 1/(2 σ_b)².
        """
        deviation = max(self.expected / _VOTES_PER_NOISE, self.ledger.noise)
        votes = sum(float((reply.reports[WITHIN] >= 0.5).sum()) - len(reply.users) / 2 for reply in replies)
        within = float(noisy(np.array([votes]), deviation, stream, _TOLD)[0]) / max(self.expected, 1.0) + 0.5
        gap = min(max(within, 0.0), 1.0) - self._config.dp_clip_quantile
        self.ledger.clip *= math.exp(-_CLIP_RATE * gap)
        self._write()
        return (self.ledger.noise**-2 - (2 * deviation) ** -2) ** -0.5
