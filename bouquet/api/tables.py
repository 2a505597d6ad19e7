"""DataFrames of the caller as data files that a run reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bouquet.config import Scalar, did_you_mean
from bouquet.errors import ConfigError
from bouquet.extras import is_there, need
from bouquet.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 10


def write_table(table: Any, folder: Path, settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Keep a DataFrame in a folder, and say by which settings a run reads it.

    Args:
        table: one row per interaction.
        folder: made if it is not there.
        settings: kebab-case; those that end in `-column` name columns of the table.
    Raises:
        ConfigError: it is no DataFrame, has no such column, or another data set is named as well.
    """
    need("pandas", "A DataFrame as dataset")
    import pandas as pd

    if not isinstance(table, pd.DataFrame):
        raise ConfigError(
            f"dataset is a {type(table).__name__}, and can be the name of a data set, a path or a DataFrame of pandas."
        )
    if "data-file" in settings:
        raise ConfigError("The dataset is a DataFrame, so leave data_file out.")
    columns = {"user-column": "user", "item-column": "item"}
    columns |= {f"{name}-column": name for name in ("time", "title") if name in table}
    columns |= {key: str(value) for key, value in settings.items() if key.endswith("-column")}
    for key, name in columns.items():
        if name and name not in table:
            shown = ", ".join(map(str, table.columns[:_SHOWN]))
            near = did_you_mean(name, {str(other) for other in table.columns} - set(columns.values()))
            raise ConfigError(
                f"The DataFrame has no column '{name}', only {shown}.{near} Name yours with {_setting(key)}."
            )
    kept = table[list(dict.fromkeys(filter(None, columns.values())))]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("data.parquet" if is_there("pyarrow") else "data.csv")
    write_atomically(file, _content(kept, file), private=True)
    return {"dataset": "file", "data-file": str(file), **columns}


def _setting(key: str) -> str:
    return key.replace("-", "_")


def _content(table: pd.DataFrame, file: Path) -> bytes:
    import pandas as pd

    # Texts and numbers in one column are texts; Parquet refuses them as they are.
    mixed = [name for name in table if table[name].dtype == object]
    table = table.assign(**{str(name): table[name].map(str, na_action="ignore") for name in mixed})
    if any(isinstance(kind, pd.CategoricalDtype) for kind in table.dtypes):
        table = table.astype({name: str for name in table if isinstance(table[name].dtype, pd.CategoricalDtype)})
    if file.suffix == ".csv":
        # Whole numbers with one missing are fractions in pandas, and would be texts like "7.0".
        return table.convert_dtypes(convert_string=False, convert_boolean=False).to_csv(index=False).encode()
    return table.to_parquet(index=False)
