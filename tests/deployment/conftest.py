"""A deployment of real processes in a temporary folder, and the certainty that nothing of it is left."""

from __future__ import annotations

import pytest

from bouquet.deployment.local import MARK, LocalDeployment
from bouquet.engines.processes import marked_processes


@pytest.fixture
def deployment(tmp_path):
    """Not started; ended by the test or after it."""
    here = LocalDeployment(tmp_path / "deployment")
    yield here
    here.down()
    assert marked_processes(MARK, str(here.folder)) == []
