"""What a node accepts: limits that its owner sets on the node, whatever a run asks for.

They hold against a server that asks for too much. The code that checks them is the node's own, unless it accepts apps:
then it comes with the run's app, and they do not hold against a server that ships other code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from bouquet.errors import ConfigError, WireError

if TYPE_CHECKING:  # `bouquet recommend` does without pydantic
    from bouquet.config import RunConfig

Updates = Literal["any", "sum", "secure"]

# What single users tell that follows from the items of their histories; no clip and no noise is on it.
HISTORY_REPORTS = frozenset({"features", "representation", "training"})


@dataclass(frozen=True)
class Policy:
    """The limits of one node; by default only sizes are limited.

    Attributes:
        accept_clip: largest update-clip, an L2 norm; 0: any, and none at all.
        accept_noise: least update-noise, in multiples of the clip; above 0, nothing of histories that has none.
        accept_decoys: least decoy-rows.
        accept_secret_draws: only runs whose draws come from a secret of the node.
        accept_updates: "sum": no run that wants every user's update, or a vector of what it likes, on its own.
            "secure": nor one whose sums are not masked.
        accept_nodes: least nodes of a secure sum; no sum over fewer is signed or unmasked.
        accept_dp_noise: least dp-noise-multiplier, of noise that nodes add themselves; above 0, no run without it.
        accept_items: most items of a published catalogue.
        accept_catalogue_bytes: most bytes of its items' names and titles together, in UTF-8.
        keep_series: of how many run series private state is kept, those that were used last.
        accept_apps: run the code that comes with a run, as Flower does, and not what is installed on the node.
    """

    accept_clip: float = 0.0
    accept_noise: float = 0.0
    accept_decoys: int = 0
    accept_secret_draws: bool = False
    accept_updates: Updates = "any"
    accept_nodes: int = 3
    accept_dp_noise: float = 0.0
    accept_items: int = 1_000_000
    accept_catalogue_bytes: int = 64 * 2**20
    keep_series: int = 5
    accept_apps: bool = False

    def __post_init__(self) -> None:
        numbers = {name: value for name, value in asdict(self).items() if isinstance(value, int | float)}
        for name, value in numbers.items():
            if not 0 <= value < float("inf"):
                raise ConfigError(f"{_key(name)} is a number from 0 up, not {value}.")
        if self.accept_updates not in ("any", "sum", "secure"):
            raise ConfigError(f"accept-updates is 'any', 'sum' or 'secure', not '{self.accept_updates}'.")
        if self.accept_nodes < 3:
            raise ConfigError("accept-nodes is at least 3: of a sum over two, each knows the other's part.")
        if self.keep_series < 1:
            raise ConfigError("keep-series is at least 1: the state of the run that goes on.")

    @classmethod
    def of(cls, node_config: Mapping[str, object]) -> Policy:
        """The policy among a node's settings, of which there are others.

        Raises:
            ConfigError: a value is none of its kind.
        """
        given: dict[str, Any] = {}
        for field in fields(cls):
            if (value := node_config.get(_key(field.name))) is None:
                continue
            kind: Callable[[str], Any] = type(field.default)
            text = str(value).lower()
            try:
                if kind is bool and text not in ("true", "false"):
                    raise ValueError(text)
                given[field.name] = text == "true" if kind is bool else kind(text)
            except ValueError:
                raise ConfigError(f"{_key(field.name)} is no {type(field.default).__name__}: '{value}'.") from None
        return cls(**given)

    def refuse_run(self, run: RunConfig, update: str, reports: Collection[str] = ()) -> None:
        """Refuse a run that asks for more than the node gives.

        Args:
            update: the kind of update that the run wants: "rows" is every user's own, all others are sums over users.
            reports: what single users shall tell beside it.
        Raises:
            ConfigError: says what the run has and what this node accepts.
        """
        wrong = []
        if self.accept_clip and not 0 < run.update_clip <= self.accept_clip:
            wrong.append(f"update-clip above 0 and at most {self.accept_clip:g} (the run: {run.update_clip:g})")
        if run.update_noise < self.accept_noise:
            wrong.append(f"update-noise of at least {self.accept_noise:g} (the run: {run.update_noise:g})")
        if run.decoy_rows < self.accept_decoys:
            wrong.append(f"decoy-rows of at least {self.accept_decoys} (the run: {run.decoy_rows})")
        if self.accept_secret_draws and not run.secret_draws:
            wrong.append("secret-draws (the run: off)")
        sums = self.accept_updates != "any"
        if self.accept_updates == "secure" and not run.secure_sums:
            wrong.append("updates under masks (the run: no secure-sums)")
        elif sums and update == "rows":
            wrong.append("updates as a sum over its users (the run: every user's own)")
        added = run.dp_noise_multiplier if run.dp_noise_from == "nodes" else 0.0
        if added < self.accept_dp_noise:
            told = f"{added:g}" if added else "none"
            wrong.append(
                f"noise of nodes with a dp-noise-multiplier of at least {self.accept_dp_noise:g} (the run: {told})"
            )
        if (sums or self.accept_noise or self.accept_dp_noise) and (telling := sorted(HISTORY_REPORTS & set(reports))):
            wrong.append(f"no vectors of single users without noise (the run: {', '.join(telling)})")
        if wrong:
            raise ConfigError(f"The policy of this node asks for {', '.join(wrong)}.")

    def refuse_catalogue(self, items: tuple[str, ...], titles: tuple[str, ...]) -> None:
        """Refuse a catalogue that is too large for the node.

        Raises:
            WireError: says how large it is.
        """
        size = sum(len(word.encode()) for word in (*items, *titles))
        if len(items) > self.accept_items or size > self.accept_catalogue_bytes:
            raise WireError(
                f"the catalogue has {len(items):,} items and {size:,} bytes of names and titles; this node accepts "
                f"{self.accept_items:,} and {self.accept_catalogue_bytes:,}"
            )


KEYS = tuple(field.name.replace("_", "-") for field in fields(Policy))


def settings_of(**given: float | str | None) -> dict[str, str]:
    """What of a policy was given, as a node's settings.

    Raises:
        ConfigError: a value is none of its kind.
    """
    settings = {_key(name): str(value).lower() for name, value in given.items() if value is not None}
    Policy.of(settings)
    return settings


def _key(name: str) -> str:
    return name.replace("_", "-")
