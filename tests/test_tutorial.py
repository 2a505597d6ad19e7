"""The notebook runs from its first cell to its last, in an empty folder."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import REPOSITORY


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    notebook = nbformat.read(REPOSITORY / "docs" / "tutorial.ipynb", as_version=4)
    assert all(not cell.outputs for cell in notebook.cells if cell.cell_type == "code"), "outputs are not kept"
    here = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources=here).execute()
    shown = [cell.outputs[-1]["data"]["text/plain"] for cell in notebook.cells if cell.get("outputs")]
    assert "NDCG@10 0.110" in shown[0]  # as the README has it
    assert "model.safetensors" in shown[-1]
