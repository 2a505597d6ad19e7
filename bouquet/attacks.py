"""Users who lie, as a probe: who they are, what they promote, and how far it gets.

An attack is a setting of a simulation. Each user lies with probability `attack-fraction`, drawn by its key, so that the
same users lie on one node and on forty, and whatever the attack is. With `attack = "none"` they are drawn and honest:
the run that an attack is compared with. Their own accuracy is never counted.

    ER@K   exposure ratio: of the users who tell the truth and have never met the target item, the share who have it
           among their K best
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.config import AttackOptions, RunConfig
from bouquet.errors import ConfigError
from bouquet.randomness import Purpose, Words, draw, generator, streams, uniforms
from bouquet.records import Report

EXPOSURE = "exposure"
"""What users tell of the target: in the 5 and in the 10 best or not, 1 or 0; -1 for those who have met it."""
CUTOFFS = (5, 10)


def liars(config: RunConfig, users: Words) -> NDArray[np.bool_]:
    """[k] which of the users with these keys lie."""
    stream = streams(config.seed, users, 0, Purpose.LIARS)
    chosen: NDArray[np.bool_] = uniforms(draw(stream, np.zeros(len(users), np.int64))) < config.attack_fraction
    return chosen


def target_of(config: RunConfig, num_items: int) -> int:
    """The place of the promoted item in the catalogue.

    Raises:
        ConfigError: there is no such item.
    """
    if config.attack_target >= num_items:
        raise ConfigError(f"attack-target is {config.attack_target}, and items are numbered from 0 to {num_items - 1}.")
    if config.attack_target >= 0:
        return config.attack_target
    return int(generator(config.seed, 0, Purpose.LIARS).integers(num_items))


def refuse_in_deployment(options: RunConfig) -> None:
    """Raises: ConfigError: users shall lie, or tell how well they are learned by heart, and they are other people's."""
    if options.evaluate_training:
        raise ConfigError(
            "evaluate-training has each user tell how its training items rank, in a simulation only, and this is a "
            "deployment: leave it out."
        )
    if options.attack_fraction > 0:
        raise ConfigError(
            "attack-fraction makes users lie to see what that does, in a simulation only, and this is a deployment: "
            "leave it out."
        )


def exposure_reports(options: AttackOptions) -> dict[str, Report]:
    """What users are asked to tell beside their metrics; nothing where nobody is drawn."""
    return {EXPOSURE: Report((len(CUTOFFS),), -1.0, 1.0)} if options.attack_fraction > 0 else {}


def exposure(told: NDArray[np.floating], lying: NDArray[np.bool_]) -> dict[str, float]:
    """ER@5, ER@10, and the number of users that they are shares of.

    Args:
        told: [n, 2] as `EXPOSURE`; NaN for users who did not answer.
        lying: [n].
    """
    seen = told[~lying & (told >= 0).all(axis=1)]
    found = {f"ER@{cutoff}": float(seen[:, at].mean()) if len(seen) else np.nan for at, cutoff in enumerate(CUTOFFS)}
    return {**found, "users": len(seen)}


def attack_summary(
    config: RunConfig, users: Words, num_items: int, rounds: Sequence[Mapping[str, Any]], best_round: int
) -> dict[str, Any]:
    """What `summary.json` says of an attack: who lied, about what, and exposure in the reported and the last round."""
    if config.attack_fraction == 0:
        return {}
    seen = {line["round"]: line[EXPOSURE] for line in rounds if EXPOSURE in line}
    last = max(seen, default=0)
    lying = int(liars(config, users).sum())
    target = target_of(config, num_items)
    told = {"kind": config.attack, "liars": lying, "target": target}
    return {"attack": told | {EXPOSURE: seen.get(best_round, {}), "last": seen.get(last, {})}}
