"""What rounds of Gaussian noise on sums over users cost: (ε, δ) of adding or removing one user.

A round draws every user on its own with probability q (Poisson), limits what each of them gives to L2 norm C, and adds
N(0, (z C)²) to every number of the sum: the Gaussian mechanism with noise multiplier z, on a Poisson sample. Two data
sets are neighbours when one has all of one user that the other has not; how many users there are is taken as known.

With q = 1 rounds compose to one Gaussian mechanism with 1/z² = Σ 1/z_t², of which δ is known in closed form (Balle and
Wang, ICML 2018):

    δ(ε) = Φ(1/(2z) - ε z) - e^ε Φ(-1/(2z) - ε z)

With q < 1 Google's `dp-accounting` composes their privacy loss distributions, rounded so that ε is never too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from scipy.optimize import brentq
from scipy.special import log_ndtr

from bouquet.errors import ConfigError
from bouquet.extras import need

# Steps in which privacy losses are counted, always up: coarser is quicker, and ε a little larger.
_LOSS_STEP = 1e-3
# Multipliers outside are of no use to anybody, and inside everything is finite.
_LEAST, _MOST = 0.02, 1e5
# How near to its target a noise multiplier is found, from above.
_PRECISION = 1e-4
_NO_EPSILON = 1e-12


@dataclass(frozen=True)
class Releases:
    """Noisy sums of one kind.

    Attributes:
        noise: z, standard deviation of the noise in multiples of what one user can change; > 0.
        sampling: q, the probability with which each user is in a sum.
        times: how many sums.
    """

    noise: float
    sampling: float = 1.0
    times: int = 1


def gaussian_delta(noise: float, epsilon: float) -> float:
    """δ of one Gaussian mechanism, of noise multiplier z, at this ε."""
    half, shift = 0.5 / noise, epsilon * noise
    one, other = log_ndtr(half - shift), epsilon + log_ndtr(-half - shift)
    return float(-math.exp(one) * math.expm1(min(other - one, 0.0)))


def gaussian_epsilon(noise: float, delta: float) -> float:
    """The least ε of one Gaussian mechanism at this δ."""
    if gaussian_delta(noise, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(noise, high) > delta:
        high *= 2
    return float(brentq(lambda epsilon: gaussian_delta(noise, epsilon) - delta, 0.0, high, xtol=_NO_EPSILON))


def gaussian_noise(epsilon: float, delta: float) -> float:
    """The least noise multiplier of one Gaussian mechanism that is (ε, δ)-private.

    Raises:
        ConfigError: the two are no such pair.
    """
    _refuse_no_budget(epsilon, delta)
    if gaussian_delta(_LEAST, epsilon) <= delta:
        return _LEAST
    logarithm = brentq(
        lambda value: gaussian_delta(math.exp(value), epsilon) - delta, math.log(_LEAST), math.log(_MOST), xtol=1e-13
    )
    return math.exp(logarithm) * (1 + 1e-12)


def epsilon_of(releases: Sequence[Releases], delta: float) -> float:
    """ε at this δ of all these sums together; 0 for none, and infinite for a sum without noise.

    Raises:
        ConfigError: users are sampled, and dp-accounting is not installed.
    """
    return _epsilon_of(tuple(part for part in releases if part.times > 0), delta)


@lru_cache(maxsize=1024)
def _epsilon_of(releases: tuple[Releases, ...], delta: float) -> float:
    if not releases:
        return 0.0
    if any(part.noise <= 0 for part in releases):
        return math.inf
    if all(part.sampling == 1.0 for part in releases):
        return gaussian_epsilon(sum(part.times / part.noise**2 for part in releases) ** -0.5, delta)
    return _composed(releases, delta)


def _composed(releases: Sequence[Releases], delta: float) -> float:
    """The same by privacy loss distributions."""
    need("dp_accounting", "The ε of rounds with a sample of the users")
    from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=_LOSS_STEP)
    for part in releases:
        gaussian = GaussianDpEvent(part.noise)
        event = gaussian if part.sampling == 1.0 else PoissonSampledDpEvent(part.sampling, gaussian)
        accountant.compose(event, part.times)
    return float(accountant.get_epsilon(delta))


def noise_multiplier(
    epsilon: float, delta: float, rounds: int, sampling: float = 1.0, others: Sequence[Releases] = ()
) -> float:
    """The least noise multiplier of every round such that all rounds, and the other sums, are (ε, δ)-private.

    Args:
        rounds: that are planned.
        others: what else the budget is for.
    Raises:
        ConfigError: no noise is enough, or dp-accounting is needed and not installed.
    """
    _refuse_no_budget(epsilon, delta)
    if (without := epsilon_of(others, delta)) >= epsilon:
        raise ConfigError(
            f"The metrics alone cost ε = {without:.3g} of dp-epsilon = {epsilon:g}: raise dp-metrics-noise."
        )
    if sampling == 1.0:
        whole = gaussian_noise(epsilon, delta)
        left = whole**-2 - sum(part.times / part.noise**2 for part in others)
        return math.sqrt(rounds / left) * (1 + 1e-9)
    return _least(lambda noise: epsilon_of([Releases(noise, sampling, rounds), *others], delta) <= epsilon)


def _least(enough: Callable[[float], bool]) -> float:
    """The least noise that is enough, found from above."""
    high = 1.0
    while not enough(high):
        high *= 2
        if high > _MOST:
            raise ConfigError("No noise is enough for this dp-epsilon: raise it, or take fewer rounds.")
    low = high / 2
    while low > _LEAST and enough(low):
        high, low = low, low / 2
    while high / low > 1 + _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def noise_share(deviation: float, nodes: int, dropouts: int = 0) -> float:
    """What noise each of several nodes adds to its part of a sum, so that nobody sees the sum without noise.

    Whichever nodes drop out, the others' noise is at least what is asked for; with fewer drop-outs it is more, by
    √(n / (n - t)) at the most.

    Args:
        deviation: standard deviation of the noise that the sum needs.
        nodes: n, that add noise.
        dropouts: t < n, of which nothing may arrive; nodes that add none on purpose count as such.
    Returns:
        the standard deviation of one node's noise.
    """
    if not 0 <= dropouts < nodes:
        raise ConfigError(f"Of {nodes} nodes {dropouts} cannot drop out: at least one has to add noise.")
    return deviation / math.sqrt(nodes - dropouts)


def _refuse_no_budget(epsilon: float, delta: float) -> None:
    if not epsilon > 0 or not 0 < delta < 1:
        raise ConfigError(f"A budget has ε above 0 and δ between 0 and 1, not ε = {epsilon:g} and δ = {delta:g}.")
