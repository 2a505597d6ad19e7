"""Questions that every method must answer, for the tests of whoever writes one.

    from bouquet.testing import MethodContract

    class TestMyMethod(MethodContract):
        method = "my-method"

asks them all, in runs of a second on made-up data. This is the one part of bouquet that needs pytest.
"""

import pytest

# Before they are imported: so that a failed assert shows its values.
pytest.register_assert_rewrite("bouquet.testing.contract", "bouquet.testing.runs")

from bouquet.testing.contract import MethodContract  # noqa: E402
from bouquet.testing.runs import (  # noqa: E402
    Faulty,
    Recording,
    assert_equal_runs,
    last_checkpoint,
    run_here,
    small_settings,
    write_data,
    write_histories,
)

__all__ = [
    "Faulty",
    "MethodContract",
    "Recording",
    "assert_equal_runs",
    "last_checkpoint",
    "run_here",
    "small_settings",
    "write_data",
    "write_histories",
]
