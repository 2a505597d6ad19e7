"""What all tests share: no packages but this one, where the real data sets are, and a way to skip without them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

import bouquet.installed

# A busy machine is no failure.
settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

# The tests are about what this repository has; a package with a method that happens to be installed has its own.
bouquet.installed.entries = lambda group: []

# A shell that runs the tests in its background has Ctrl-C ignored, and whatever they start would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parent.parent


def data_directory() -> Path:
    """The folder of real data sets: $BOUQUET_TEST_DATA, or `shared/datasets` beside the checkout."""
    return Path(os.environ.get("BOUQUET_TEST_DATA", REPOSITORY.parent / "shared" / "datasets"))


@pytest.fixture
def real_data():
    """`real_data("ml-100k")` is the folder of that set; the test is skipped where it is absent."""

    def folder(name: str) -> Path:
        path = data_directory() / name
        if not path.is_dir():
            pytest.skip(
                f"the real data set {name} is not in {data_directory()} (name the folder with BOUQUET_TEST_DATA)"
            )
        return path

    return folder
