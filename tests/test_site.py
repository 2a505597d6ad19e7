"""The documents as a site: every link and every docstring on it can be read."""

from __future__ import annotations

import re
import subprocess
import sys

from bouquet import extend
from tests.conftest import REPOSITORY


def test_what_a_package_may_import_has_a_page():
    page = (REPOSITORY / "docs" / "reference" / "extend.md").read_text()
    shown = re.findall(r"^::: ([\w.]+)\.(\w+)$", page, re.MULTILINE)
    # pydantic has pages of its own.
    written = {name: module for module, name in shown}
    assert written.pop("MethodContract") == "bouquet.testing"
    assert written == {name: place for name, place in extend._PLACES.items() if place != "pydantic"}


def test_the_site_is_built_without_a_warning(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=REPOSITORY,
        env={"PATH": "", "NO_MKDOCS_2_WARNING": "1"},
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    page = (tmp_path / "site" / "security" / "index.html").read_text()
    assert "<code>tests/runs/test_poison.py</code>" in page  # a link that leaves the documents
    assert not re.search(r'(?:src|rel="stylesheet" href)="https?:', page)  # read without a network
