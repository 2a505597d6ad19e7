"""Runs, tables and searches that come with bouquet, found by name from whatever folder.

In a checkout they lie in `configs`; an installed bouquet has the same files among its own.
"""

from __future__ import annotations

from pathlib import Path

from bouquet.config import did_you_mean
from bouquet.errors import ConfigError

FOLDER = Path(__file__).resolve().parent / "configs"
RUNS, TABLES, SEARCHES = "", "tables", "search"


def ready_made(named: Path, kind: str) -> Path:
    """The file that is meant: a path of one's own goes first, then the name of one of ours.

    Args:
        named: `mine.toml`, `champions-ml-100k`, or `configs/tables/champions-ml-100k.toml` as the documents write it.
        kind: RUNS, TABLES or SEARCHES.
    Raises:
        ConfigError: there is neither.
    """
    if named.exists() and not named.is_dir():
        return named
    found = FOLDER / kind / f"{named.stem if named.suffix == '.toml' else named.name}.toml"
    if named.parent in (Path(), Path("configs", kind)) and found.is_file():
        return found
    ours = sorted(path.stem for path in (FOLDER / kind).glob("*.toml"))
    near = did_you_mean(named.stem, ours)
    raise ConfigError(f"There is no configuration file {named}.{near}")
