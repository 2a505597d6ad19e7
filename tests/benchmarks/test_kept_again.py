"""Kept cells that are trained once more, for real, and told from those that do not come again."""

from dataclasses import replace

import pytest

from benchmarks import kept_again
from bouquet.cli.run import execute
from bouquet.cli.screen import Screen
from bouquet.experiments.kept_cells import KeptCell, read_cell, write_cell
from bouquet.experiments.kept_runs import of_run
from bouquet.experiments.settings import with_defaults

SMALL = {"strategy": "fedavg", "dataset": "synthetic", "max-users": 40, "num-server-rounds": 2, "embedding-size": 4}


@pytest.fixture(scope="module")
def cell(tmp_path_factory) -> KeptCell:
    folder = tmp_path_factory.mktemp("run")
    return of_run(execute(with_defaults({**SMALL, "out": str(folder)}), 1, "local", Screen()))


def again(cells, out, capsys, *words):
    """The rows, and the last line."""
    given = ["--cells", cells, "--out", out, "--dataset", "synthetic", "--data-dir", "", "--draw", "1", *words]
    kept_again.main([str(word) for word in given])
    return (out / "again.md").read_text().splitlines()[2:], capsys.readouterr().out.splitlines()[-1]


def test_a_cell_comes_again_and_one_that_was_changed_does_not(cell, tmp_path, capsys):
    write_cell(tmp_path / "cells", cell)
    other = replace(cell, settings={**cell.settings, "num-server-rounds": 1})
    write_cell(tmp_path / "cells", other)
    rows, said = again(tmp_path / "cells", tmp_path / "out", capsys)
    assert sorted("| True |" in row for row in rows) == [False, True]
    assert said == "1 of 2 are the same to the last digit; 0 were not run."


def test_what_has_ended_is_not_run_again(cell, tmp_path, capsys):
    write_cell(tmp_path / "cells", cell)
    rows, _ = again(tmp_path / "cells", tmp_path / "out", capsys)
    assert again(tmp_path / "cells", tmp_path / "out", capsys, "--minutes", "0")[0] == rows


def test_a_run_that_takes_too_long_is_told(cell, tmp_path, capsys):
    write_cell(tmp_path / "cells", cell)
    (row,), said = again(tmp_path / "cells", tmp_path / "out", capsys, "--minutes", "0")
    assert "takes more than 0 minutes" in row
    assert said == "0 of 0 are the same to the last digit; 1 were not run."


def test_the_draw_takes_some_of_each_method_that_are_of_today(cell, tmp_path):
    """Four seeds of FedAvg, two of FCF, of which one has a revision that is no more; two are asked for."""
    for seed in range(4):
        write_cell(tmp_path, replace(cell, settings={**cell.settings, "seed": seed}))
    for seed, revision in enumerate([cell.revision, "0.0"]):
        settings, summary = {**cell.settings, "strategy": "fcf", "seed": seed}, {**cell.summary, "strategy": "fcf"}
        write_cell(tmp_path, replace(cell, settings=settings, summary=summary, revision=revision))

    def taken(draw):
        return kept_again.drawn(tmp_path, ["synthetic"], ["honest"], 2, draw)

    assert taken(0) == taken(0)
    assert len({tuple(taken(draw)) for draw in range(20)}) > 1
    cells = [read_cell(path) for path in taken(0)]
    assert [each.settings["strategy"] for each in cells] == ["fcf", "fedavg", "fedavg"]
    assert cells[0].settings["seed"] == 0
    assert kept_again.drawn(tmp_path, ["synthetic"], ["paper"], 2, 0) == []
