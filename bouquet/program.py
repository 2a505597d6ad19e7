"""`python …/bouquet/program.py MODULE …`: as `python -m MODULE …`, with our packages first on the path.

`python -m` puts the folder that it is started in there, whatever lies in it.
"""

import contextlib
import os
import runpy
import sys
from pathlib import Path


def stay_nice() -> None:
    """Have a session that this process leads give way as much as the process does.

    Linux may share the processor out by sessions (autogroup): how nice a process is then counts within its own alone,
    and whoever started us with `nice` would have been heard by no process that has a session of its own.
    """
    nice = os.nice(0)
    if nice > 0 and os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))


if __name__ == "__main__":
    stay_nice()
    _here = Path(__file__).resolve().parent
    # A program's own folder comes first of all: its modules would be taken for packages of the same names.
    sys.path[:] = [str(_here.parent), *(path for path in sys.path if Path(path or ".").resolve() != _here)]
    from bouquet.own_packages import put_first

    put_first()
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
