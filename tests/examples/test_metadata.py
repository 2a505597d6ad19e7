"""What a package says of itself, with and without an address where it is published."""

import os
import shutil
import subprocess
import sys
from email import message_from_string

import pytest

from tests.conftest import REPOSITORY

FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
CODE = "from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_wheel('.'))"


@pytest.fixture
def metadata(tmp_path):
    """The metadata that setuptools makes, given variables of the environment."""
    pytest.importorskip("setuptools", reason="metadata is made with setuptools")
    for name in FILES:
        shutil.copy(REPOSITORY / name, tmp_path)

    def made(**environment):
        done = subprocess.run(
            [sys.executable, "-c", CODE],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        folder = tmp_path / done.stdout.splitlines()[-1]
        return message_from_string((folder / "METADATA").read_text())

    return made


def links(text):
    """Where its links go, but for those to other projects."""
    found = [part.partition(")")[0] for part in text.split("](")[1:]]
    return [link for link in found if not link.startswith(("https://flower.ai", "http://127.0.0.1"))]


def test_without_an_address_a_description_has_no_link_that_leads_nowhere(metadata):
    found = metadata()
    assert links(found.get_payload()) == []
    assert found.get_all("Project-URL") is None
    assert "all documents: what" in found.get_payload()
    assert len(found.get_all("Classifier")) > 5


def test_with_an_address_every_link_leads_to_a_file_of_this_release(metadata):
    found = metadata(BOUQUET_HOME="https://code.example/bouquet/")
    files = f"https://code.example/bouquet/blob/v{found['Version']}/"
    leads = links(found.get_payload())
    assert len(leads) > 10
    for link in leads:
        assert link.startswith(files)
        assert (REPOSITORY / link.removeprefix(files).partition("#")[0]).exists(), link
    pages = dict(entry.split(", ") for entry in found.get_all("Project-URL"))
    assert pages.pop("Homepage") == "https://code.example/bouquet"
    assert all((REPOSITORY / page.removeprefix(files)).exists() for page in pages.values())


def test_files_may_be_somewhere_else(metadata):
    found = metadata(BOUQUET_HOME="https://code.example/b", BOUQUET_FILES="https://files.example/1")
    assert all(link.startswith("https://files.example/1/") for link in links(found.get_payload()))
