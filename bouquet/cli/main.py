"""`bouquet`: the commands, and how an error becomes one sentence and an exit status."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bouquet.errors import BouquetError

app = typer.Typer(
    help="Federated recommendation on Flower.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _commands() -> None:
    """Keeps `bouquet run` a command of its own, however many commands there are."""


@app.command()
def run(
    config: Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")] = None,
    override: Annotated[list[str] | None, typer.Option("-c", help="Settings: 'key=value key=value'.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes that the users are laid over.")] = 4,
    engine: Annotated[str, typer.Option("--engine", help="flower (its simulation) or local (one process).")] = "flower",
    out: Annotated[str, typer.Option("--out", help="Folder for the results.")] = "",
    compare_with: Annotated[
        str, typer.Option("--compare-with", help="Rows of the final table beside this run; '' for none.")
    ] = "local popularity ease",
) -> None:
    """Train a federated recommender and say how good it is."""
    from bouquet.cli.run import run_command

    run_command(config, override or [], nodes, engine, out, compare_with.split())


def main() -> None:
    """Entry point of the program."""
    try:
        status = app(standalone_mode=False)
    except BouquetError as error:
        print(error, file=sys.stderr)
        status = error.exit_status
    except KeyboardInterrupt:
        status = 130
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(f"The system refused: {error.strerror or error}{where}.", file=sys.stderr)
        status = 1
    except typer.Exit as error:
        status = error.exit_code
    except Exception as error:
        # click's own errors: wrong options, missing arguments
        if not hasattr(error, "show"):
            raise
        error.show()
        status = getattr(error, "exit_code", 2)
    sys.exit(status or 0)
