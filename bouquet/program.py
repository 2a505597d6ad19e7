"""`python …/bouquet/program.py MODULE …`: as `python -m MODULE …`, with our packages first on the path.

`python -m` puts the folder that it is started in there, whatever lies in it.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    _here = Path(__file__).resolve().parent
    # A program's own folder comes first of all: its modules would be taken for packages of the same names.
    sys.path[:] = [str(_here.parent), *(path for path in sys.path if Path(path or ".").resolve() != _here)]
    from bouquet.own_packages import put_first

    put_first()
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
