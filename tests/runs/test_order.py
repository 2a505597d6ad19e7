"""Histories without times are in no order: what reads their order is refused before anything is trained."""

from __future__ import annotations

import pandas as pd
import pytest
from flwr.app import Error, Message, RecordDict

from bouquet.cli.run import run_command
from bouquet.config import defaults
from bouquet.engines.inside import use_task_identity
from bouquet.errors import ConfigError, RunFailed
from bouquet.experiments.baselines import comparison_rows
from bouquet.experiments.settings import option_classes, resolve
from bouquet.experiments.table_cells import cells_of
from bouquet.experiments.table_file import read_table_file
from bouquet.methods import METHODS
from bouquet.methods.manifest import class_at
from bouquet.reporting.run_directory import RunDirectory
from client_app.node.host import host_of
from data_partition import DATASETS, load, write_shards
from models import BACKBONES
from strategies.federation.replies import error_text
from tests.runs.helpers import pairs, run_here, small_settings

READERS = [f'backbone="{name}"' for name, backbone in BACKBONES.items() if backbone.reads_order]
READERS += [
    f'strategy="{name}"'
    for name, method in METHODS.items()
    if method.device and class_at(method.device).reads_order(method.options())
]
WITHOUT_TIMES = sorted(name for name, dataset in DATASETS.items() if not dataset.has_time)


def test_who_reads_the_order():
    """A new method that does is entered by saying so."""
    assert sorted(READERS) == [
        'backbone="gru4rec"',
        'backbone="sasrec"',
        'strategy="cf-fedsr"',
        'strategy="sequential-rules"',
        'strategy="slist"',
    ]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("dataset", WITHOUT_TIMES)
@pytest.mark.parametrize("split", ["", 'hold-out="random"', 'hold-out="last-row"', 'split="ratio"'])
def test_a_set_without_times_is_refused_by_name(reader, dataset, split):
    name = reader.split('"')[1]
    with pytest.raises(ConfigError, match=f"^{name} reads histories in the order of time, and {dataset} has no times"):
        resolve(None, [f'dataset="{dataset}"', reader, split])


@pytest.mark.parametrize(
    "fits",
    [
        'dataset="filmtrust"',
        'dataset="filmtrust" strategy="cf-fedsr" cf-fedsr-selection=false',
        'dataset="ml-100k" backbone="sasrec" strategy="cf-fedsr"',
        'dataset="amazon-video-games" backbone="gru4rec"',
    ],
)
def test_what_reads_no_order_or_has_times_is_not(fits):
    assert resolve(None, [fits])


def test_a_file_without_a_time_column_is_refused_before_the_run_begins(tmp_path):
    settings = small_settings(tmp_path, backbone="gru4rec", time_column="")
    given = pairs({key: settings[key] for key in ("dataset", "data-file", "backbone")})[1]
    with pytest.raises(ConfigError) as refused:
        run_command(None, [given], 1, "local", str(tmp_path / "run"), [])
    assert str(refused.value) == (
        "gru4rec reads histories in the order of time, and data.csv has no times: its rows may be sorted by item. "
        "Name the column of its times with time-column, or use a backbone that reads no order, such as mf."
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("reader", [{"backbone": "sasrec"}, {"strategy": "cf-fedsr"}])
def test_where_only_nodes_have_the_data_theirs_is_the_sentence(tmp_path, reader):
    (name,) = reader.values()
    with pytest.raises(
        RunFailed, match=rf"nodes cannot take part. The first says: {name} reads .*data.csv has no times"
    ):
        run_here(tmp_path / "run", small_settings(tmp_path, time_column="", **reader), 2)
    assert RunDirectory(tmp_path / "run").rounds() == []


@pytest.mark.parametrize(
    "reason",
    [
        "<class 'bouquet.errors.ConfigError'>:<'Choose a set with times.'>",
        "<class 'flwr.clientapp.client_app.ClientAppException'>:<'\nException ClientAppException occurred. "
        "Message: Choose a set with times.'>",
        "Choose a set with times.",
    ],
    ids=["SuperNode", "simulation", "one process"],
)
def test_what_a_node_says_reaches_the_operator_as_it_was_said(reason):
    """As flwr 1.39 words the error reply to a message whose ClientApp raised."""
    use_task_identity()
    asked = Message(RecordDict(), dst_node_id=1, message_type="query")
    assert error_text(Message(Error(code=0, reason=reason), reply_to=asked)) == "Choose a set with times."


def test_a_shard_knows_whether_it_has_times(tmp_path):
    """Whatever the run says about a column of times: it is the shard's data that is read."""
    settings = small_settings(tmp_path, backbone="gru4rec", max_length=5)
    for column in ("time", ""):
        made = load("file", data_file=settings["data-file"], time_column=column)
        (part,) = write_shards(made, 1, "contiguous", settings, tmp_path / f"shards-{column}")
        node = {"shard": str(part), "state-dir": str(tmp_path / "state")}
        if column:
            assert host_of(settings, node).histories.in_time
        else:
            with pytest.raises(ConfigError, match="gru4rec reads histories in the order of time"):
                host_of(settings, node)


def table(folder, row, dataset):
    (folder / "table.toml").write_text(
        f'title = "T"\n[settings]\n{dataset}\n[[rows]]\nname = "popularity"\ncentralized = "popularity"\n'
        f'[[rows]]\nname = "order"\n{row}\n'
    )
    return cells_of(read_table_file(folder / "table.toml"), folder, folder / "out", [])


@pytest.mark.parametrize(
    "row",
    ['centralized = "gru4rec"', 'centralized = "sasrec"', *(f"settings = {{{reader}}}" for reader in READERS)],
)
@pytest.mark.parametrize("dataset", ['dataset = "lastfm-2k"', 'dataset = "file"\ndata-file = "data.csv"'])
def test_a_table_is_refused_before_its_first_cell(tmp_path, row, dataset):
    with pytest.raises(ConfigError, match=r"^Row 'order': [a-z0-9-]+ reads histories in the order of time, and "):
        table(tmp_path, row, dataset)
    # One of popularity, and of three seeds three, where the seed matters.
    seedless = any(f'"{name}"' in row for name, method in METHODS.items() if method.seedless)
    assert len(table(tmp_path, row, 'dataset = "ml-100k"')) == (2 if seedless else 4)


@pytest.mark.parametrize("name", ["gru4rec", "sasrec"])
def test_a_row_beside_a_run_is_not_available(tmp_path, name):
    pd.DataFrame({"user": [1, 1, 1, 2], "item": [1, 2, 3, 1]}).to_csv(tmp_path / "data.csv", index=False)
    settings = defaults(option_classes()) | {"dataset": "file", "data-file": str(tmp_path / "data.csv")}
    (row,) = comparison_rows(settings, [name]).values()
    assert row["unavailable"].startswith(f"{name} reads histories in the order of time, and data.csv has no times")
