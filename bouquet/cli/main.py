"""`bouquet`: the commands, and how an error becomes one sentence and an exit status."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

import bouquet
from bouquet import __version__
from bouquet.cli.data_app import data
from bouquet.cli.deploy_app import deploy, serve
from bouquet.cli.node_app import node, recommend
from bouquet.cli.probe_app import probe
from bouquet.errors import BouquetError, ConfigError, tell
from bouquet.extras import need
from bouquet.own_packages import broken, put_first

app = typer.Typer(
    help="Federated recommendation on Flower.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(data, name="data")
app.add_typer(probe, name="probe")
app.add_typer(deploy, name="deploy")
app.add_typer(serve, name="serve")
app.add_typer(node, name="node")
app.command()(recommend)


def _version(asked: bool) -> None:
    if asked:
        print(f"bouquet {__version__} ({Path(bouquet.__file__).parent.parent})")
        raise typer.Exit


@app.callback()
def _commands(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_version, help="The release, and where it is installed."),
    ] = False,
) -> None:
    """Federated recommendation on Flower."""


@app.command()
def run(
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file with settings, or the name of one of ours.")
    ] = None,
    override: Annotated[list[str] | None, typer.Option("-c", help="Settings: 'key=value key=value'.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes that the users are partitioned over.")] = 4,
    engine: Annotated[
        str,
        typer.Option(
            "--engine", help="flower (its simulation; the default where Ray is installed) or local (one process)."
        ),
    ] = "",
    out: Annotated[str, typer.Option("--out", help="Folder for the results.")] = "",
    compare_with: Annotated[
        str | None, typer.Option("--compare-with", help="Rows of the final table beside this run; '' for none.")
    ] = None,
) -> None:
    """Train a federated recommender and say how good it is."""
    from bouquet.cli.run import run_command

    run_command(config, override or [], nodes, engine, out, None if compare_with is None else compare_with.split())


@app.command()
def compare(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR…", help="Folders of finished runs.")],
    metric: Annotated[str, typer.Option("--metric", help="What is tested user by user.")] = "NDCG@10",
    candidates: Annotated[str, typer.Option("--candidates", help="full or sampled-99.")] = "full",
) -> None:
    """Finished runs side by side, each tested against the first."""
    from bouquet.cli.compare import compare_command

    compare_command(directories, metric, candidates)


@app.command()
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Folder of a finished run; with --html several, or a table's.")
    ],
    html: Annotated[Path | None, typer.Option("--html", help="Write one page of all of them to this file.")] = None,
    examples: Annotated[
        int, typer.Option("--examples", min=0, help="Users whose recommendations the page shows, where a run has them.")
    ] = 3,
) -> None:
    """The table of a finished run again, or a page of runs side by side."""
    from bouquet.cli.compare import page_command, report_command

    if html:
        page_command(directories, html, examples)
    elif len(directories) > 1:
        raise ConfigError("On the screen report shows one run; give --html FILE, or take bouquet compare.")
    else:
        report_command(directories[0])


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished run.")],
    out: Annotated[Path, typer.Option("--out", help="New folder for the files.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Recommended items of each user.")] = 10,
    onnx: Annotated[bool, typer.Option("--onnx", help="The scoring model as an ONNX graph, too.")] = False,
) -> None:
    """The model that a run reports, for other programs: arrays, item ids, recommendations."""
    from bouquet.files import write_atomically
    from bouquet.reporting.export import export as write
    from bouquet.reporting.run_directory import RunDirectory

    graph = None
    if onnx:
        from bouquet.experiments import onnx_model

        graph = onnx_model.onnx_of(RunDirectory(directory))
    folder = write(RunDirectory(directory), out, k)
    if graph is not None:
        write_atomically(folder / onnx_model.NAME, graph)
    print(f"Written: {', '.join(sorted(str(path) for path in folder.iterdir()))}")


@app.command()
def diagnose(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run, with its private state.")],
    consenting: Annotated[
        str, typer.Option("--consenting-user", help="A user who agreed to show its heat map and its map of items.")
    ] = "",
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file with settings: DIR is run with them first.")
    ] = None,
    override: Annotated[list[str] | None, typer.Option("-c", help="Settings, likewise: 'key=value'.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="As for `bouquet run`, where DIR is run first.")] = 4,
    engine: Annotated[str, typer.Option("--engine", help="As for `bouquet run`, likewise.")] = "",
) -> None:
    """Spectra, information abundance and overlap of item tables, as means over users."""
    need("torch", "Looking into item tables")
    from bouquet.cli.diagnose import run_and_diagnose

    run_and_diagnose(directory, consenting, config, override or [], nodes, engine)


@app.command()
def explain(key: Annotated[str, typer.Argument(metavar="[KEY]", help="A setting; left out: all.")] = "") -> None:
    """What a setting means, its default and what it can be."""
    from bouquet.cli.explain import explain_command

    explain_command(key)


@app.command()
def table(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE…", help="TOML files of tables, or names of such that come with bouquet."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the table; one that was stopped goes on.")],
    override: Annotated[list[str] | None, typer.Option("-c", help="Settings of all cells: 'key=value'.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes that the users are partitioned over.")] = 4,
    engine: Annotated[str, typer.Option("--engine", help="As for `bouquet run`.")] = "",
    only: Annotated[list[str] | None, typer.Option("--only", help="Run this row only; can be repeated.")] = None,
    cells: Annotated[
        Path | None,
        typer.Option("--cells", help="Folder that finished cells are taken from, and kept in."),
    ] = None,
) -> None:
    """Every run of a results table, and the table."""
    from bouquet.cli.table import tables_command

    tables_command(files, out, override or [], nodes, engine, only or [], cells)


@app.command()
def evaluate(
    scores: Annotated[Path, typer.Argument(metavar="SCORES", help="Parquet, CSV or TSV: user, item, score or rank.")],
    split: Annotated[Path | None, typer.Option("--split", help="Folder of `bouquet data export`.")] = None,
    override: Annotated[list[str] | None, typer.Option("-c", help="Settings of the data, without --split.")] = None,
    out: Annotated[str, typer.Option("--out", help="Folder for the results.")] = "",
    name: Annotated[str, typer.Option("--name", help="What the scores are called; else as their file.")] = "",
    train_negatives: Annotated[
        str,
        typer.Option("--train-negatives", help="How the program drew them: honest, or paper, which is marked LEAKY."),
    ] = "",
    compare_with: Annotated[
        str | None,
        typer.Option("--compare-with", help="Rows of pooled data, and folders of runs, to test against; '' for none."),
    ] = None,
    metric: Annotated[str, typer.Option("--metric", help="What is tested user by user.")] = "NDCG@10",
    candidates: Annotated[str, typer.Option("--candidates", help="full or sampled-99.")] = "full",
) -> None:
    """Evaluate the scores of another program as runs are."""
    from bouquet.cli.evaluate import evaluate_command

    others = None if compare_with is None else compare_with.split()
    evaluate_command(scores, split, override or [], out, name, train_negatives, others, metric, candidates)


@app.command()
def search(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="TOML file of a search, or the name of one that comes with bouquet.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the search; one that was stopped goes on.")],
    override: Annotated[list[str] | None, typer.Option("-c", help="Settings of all trials: 'key=value'.")] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes that the users are partitioned over.")] = 4,
    engine: Annotated[str, typer.Option("--engine", help="As for `bouquet run`.")] = "",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Trials at once, each in a process of its own.")] = 1,
    only: Annotated[list[str] | None, typer.Option("--only", help="Search this row only; can be repeated.")] = None,
) -> None:
    """Settings of many methods, chosen on validation with the same number of trials for each."""
    from bouquet.cli.search import search_command

    search_command(file, out, override or [], nodes, engine, jobs, only or [])


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Entry point of the program."""
    put_first()
    # Asked to end, a run ends as after Ctrl-C: Flower's processes first, and a folder that says so.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        status = app(standalone_mode=False, prog_name="bouquet")
    except BouquetError as error:
        print(error, file=sys.stderr)
        tell(error)
        status = error.exit_status
    except KeyboardInterrupt:
        status = 130
    except ImportError as error:
        if not (sentence := broken(error)):
            raise
        print(sentence, file=sys.stderr)
        status = 1
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
