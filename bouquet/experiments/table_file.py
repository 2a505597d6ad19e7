"""The file of a results table: which rows, under which settings, against whose printed figures.

title = "…"
metrics = ["HR@10", "NDCG@10"]       # columns, for each of …
candidates = ["full", "sampled-99"]  # … these candidate sets
digits = 3                           # of metrics
seeds = [0, 1, 2]
against = "fedavg"                   # row that all others are tested against; left out: no such tests
extra = ["fairness", "traffic"]      # variance over users; bytes of all users up to the best round; HeteFedRec also has
                                     # "groups" (the last metric, by group) and "collapse" (variance of singular values)
                                     # "movement", how far users' own item tables are from where they began
                                     # "exposure", ER@5 and ER@10 of the target where users lie (attack-fraction)
figure = {x = "fedca-rho"}           # curves as a picture and as numbers: a setting that rows vary, or "round", "group"
                                     # (HeteFedRec's) or "variance" (over users); more keys: label, of the axis, scale,
                                     # "linear" or "log", and training = true, a curve of the training items beside
part = "test"                        # which hidden items are ranked; "validation" for tables that settings come from

[settings]                           # of all rows; `-c` goes over them
dataset = "ml-100k"

[[rows]]                             # a federated row: settings over a configuration file
name = "fedavg"
label = "FedAvg"
config = "../ml-100k-fedavg.toml"    # relative to this file; may be left out
settings = {local-epochs = 5}
base = "fcf"                         # another row that this one is tested against, too
settings-from = "../search"          # what a search chose for its row of this name; of the table: for all rows
variant-of = "fedca"                 # a row above, whose settings this one has, chosen ones too, but for its own; and
                                     # which it is tested against, if it has no other base
line = "FedCA"                       # the curve of the figure that this row is a point of
printed = {"sampled-99" = {"HR@10" = 0.48}}
printed-source = "a paper, Table 2"

[[rows]]                             # a centralized row: a name of models.centralized
name = "popularity"
centralized = "popularity"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from bouquet.config import Scalar, defaults, did_you_mean, lookup
from bouquet.errors import ConfigError
from bouquet.evaluation import CANDIDATE_SETS, METRICS
from bouquet.experiments.settings import option_classes, read_config_file
from models.centralized import POOLED

# What a centralized row may set for itself: users, and what is hidden of them, stay the same.
OWN_KEYS = ("training-share",)
ROUND, GROUP, VARIANCE = "round", "group", "variance"
# What an axis of a figure is called that is no setting.
AXES = {
    ROUND: "round",
    GROUP: "group of users, least data first",
    VARIANCE: "variance over users of HR@10 + NDCG@10",
}

Seeds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class Part(BaseModel):
    """A part of a file whose keys are kebab-case and all known."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=lambda name: name.replace("_", "-")
    )


class Row(Part):
    """One line of the table."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    label: str = ""
    config: str = ""
    settings: dict[str, Scalar] = {}
    base: str = ""
    settings_from: str = ""
    variant_of: str = ""
    centralized: str = ""
    line: str = ""
    printed: dict[str, dict[str, float]] = {}
    printed_source: str = ""
    seeds: Seeds | None = None

    @property
    def title(self) -> str:
        """What the row is called in the table."""
        return self.label or self.name

    @property
    def own_base(self) -> str:
        """The row that this one is tested against beside the table's; "" for none."""
        return self.base or self.variant_of


class FigureOf(Part):
    """What a table's figure has on its axis."""

    x: str
    label: str = ""
    scale: Literal["linear", "log"] = "linear"
    training: bool = False

    @property
    def axis(self) -> str:
        """What the axis is called."""
        return self.label or AXES.get(self.x, self.x)


class TableFile(Part):
    """A whole table."""

    title: str
    metrics: Annotated[list[str], Field(min_length=1)] = ["HR@10", "NDCG@10"]
    candidates: Annotated[list[str], Field(min_length=1)] = ["full", "sampled-99"]
    seeds: Seeds = [0, 1, 2]
    against: str = ""
    digits: Annotated[int, Field(ge=3, le=6)] = 3
    extra: list[Literal["fairness", "traffic", "groups", "collapse", "exposure", "movement"]] = []
    part: Literal["test", "validation"] = "test"
    figure: FigureOf | None = None
    settings: dict[str, Scalar] = {}
    settings_from: str = ""
    rows: Annotated[list[Row], Field(min_length=1)]


def read_table_file(path: Path) -> TableFile:
    """Read and check the file of a table.

    Raises:
        ConfigError: it is missing, no TOML, or something in it is wrong: one sentence about the first thing.
    """
    try:
        table = TableFile.model_validate(read_config_file(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {sentence(error.errors()[0], TableFile, Row)}") from None
    try:
        _check_names(table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return table


def _check_names(table: TableFile) -> None:
    rows = [row.name for row in table.rows]
    for name in rows:
        if rows.count(name) > 1:
            raise ConfigError(f"There are two rows '{name}'.")
    for seeds in (table.seeds, *(row.seeds or [] for row in table.rows)):
        if len(set(seeds)) < len(seeds):
            raise ConfigError("A seed stands twice in seeds.")
    if table.against:
        lookup(dict.fromkeys(rows), "row", table.against)
    if table.part == "validation" and table.extra:
        raise ConfigError(
            "'extra' are columns of the test part, and a table with part = \"validation\" has none of it."
        )
    _check_figure(table)
    _lookup_figures(table.candidates, table.metrics)
    for row in table.rows:
        if row.base:
            lookup(dict.fromkeys(rows), "row", row.base)
            if row.base == row.name:
                raise ConfigError(f"row '{row.name}' is its own base.")
        if row.variant_of:
            _check_variant(row, table.rows)
        for candidates, figures in row.printed.items():
            _lookup_figures([candidates], figures)
        if row.centralized:
            lookup(dict.fromkeys(POOLED), "centralized model", row.centralized)  # nothing is imported for a name
            if row.config or row.settings_from or row.variant_of or not set(row.settings) <= set(OWN_KEYS):
                raise ConfigError(
                    f"row '{row.name}' is centralized: it takes the data settings of the table, and no config, "
                    f"settings-from, variant-of or settings of its own but {' and '.join(OWN_KEYS)}."
                )


def _check_variant(row: Row, rows: Sequence[Row]) -> None:
    above = {other.name: other for other in rows[: rows.index(row)]}
    if lookup(above, "earlier row", row.variant_of).centralized:
        raise ConfigError(f"row '{row.name}' is a variant of '{row.variant_of}', which is centralized.")
    if row.config or row.settings_from:
        raise ConfigError(
            f"row '{row.name}' has the settings of '{row.variant_of}': leave config and settings-from out."
        )
    if not row.settings:
        raise ConfigError(f"row '{row.name}' is a variant of '{row.variant_of}' and has no settings of its own.")


def _check_figure(table: TableFile) -> None:
    lines = [row.name for row in table.rows if row.line]
    if table.figure is None:
        if lines:
            raise ConfigError(f"row '{lines[0]}' is on a line, and the table has no figure: add figure = {{x = …}}.")
        return
    if table.figure.x in AXES:
        if table.figure.x != ROUND and table.part == "validation":
            raise ConfigError(f"Over '{table.figure.x}' there are figures of the test part only.")
        if table.figure.x == GROUP and table.candidates != ["full"]:
            raise ConfigError('Groups have metrics over the full catalogue only: candidates = ["full"].')
        if table.figure.training:
            raise ConfigError(f"Training items are drawn over a setting, not over '{table.figure.x}'.")
        return
    lookup(defaults(option_classes()), "setting for the figure's axis", table.figure.x)
    if not lines:
        raise ConfigError("'figure' has no curve: give the rows that are points of one the same line.")
    for row in table.rows:
        if row.line and row.centralized and table.figure.x not in OWN_KEYS:
            raise ConfigError(f"row '{row.name}' is centralized and has no '{table.figure.x}': leave its line out.")


def _lookup_figures(candidates: Sequence[str], metrics: Sequence[str] | Mapping[str, float]) -> None:
    for name in candidates:
        lookup(dict.fromkeys(CANDIDATE_SETS), "candidate set", name)
    for name in metrics:
        lookup(dict.fromkeys(METRICS), "metric", name)


def sentence(error: ErrorDetails, whole: type[Part], row: type[Part]) -> str:
    """One sentence about something in a file with rows, without the file's name and with a small first letter."""
    place, key = list(error["loc"]), str(error["loc"][-1])
    where = f" in row {int(place[1]) + 1}" if place[0] == "rows" and len(place) > 1 else ""
    if error["type"] == "extra_forbidden":
        known = [name.replace("_", "-") for name in (row if where else whole).model_fields]
        return f"there is no key '{key}'{where}.{did_you_mean(key, known)}"
    if error["type"] == "missing":
        return f"'{key}' is missing{where}."
    dotted = ".".join(str(step) for step in (place[2:] if where else place))
    message = error["msg"][:1].lower() + error["msg"][1:]
    return f"'{dotted}'{where} cannot be {error['input']!r}: {message}."
