"""Forked processes that end with whom they were forked by, and without what that one would do at its end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import Any, NoReturn

# Between two looks at a forked process.
CHILD_SECONDS = 0.2
# PR_SET_PDEATHSIG of <linux/prctl.h>.
_PARENT_DEATH_SIGNAL = 1


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this forked process when its parent has ended, in whatever it is just then.

    Linux alone has that. Elsewhere each looks again and again who its parent is, which it cannot while it waits for a
    server that is gone.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that was said
        os._exit(1)


def work_and_end(work: Any, *arguments: Any) -> NoReturn:
    """Work in a forked process, and end it without what its origin would do at its own end."""
    status = 1
    try:
        work(*arguments)
        status = 0
    except SystemExit as asked:
        status = asked.code if isinstance(asked.code, int) else 1
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
