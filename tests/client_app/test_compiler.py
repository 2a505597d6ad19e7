"""How kernels are compiled."""

import pytest
from numba.core.registry import CPUDispatcher

from client_app.training import compiler

MODULES = [name for name in compiler._MODULES if name != "kernels_compile"]


def compiled(name):
    """The compiled functions that a module has or imports, by name, and for each the names of those that it calls."""
    functions = {key: value for key, value in vars(compiler._load(name)).items() if isinstance(value, CPUDispatcher)}
    calls = {key: functions.keys() & set(value.py_func.__code__.co_names) for key, value in functions.items()}
    return functions, calls


@pytest.mark.parametrize("name", MODULES)
def test_a_kernel_holds_whatever_it_calls(name):
    """What is linked and not inlined may be another kernel's copy, which rounds differently."""
    functions, calls = compiled(name)
    assert functions
    for called in set().union(*calls.values()):
        options = functions[called].targetoptions
        assert options.get("forceinline") or options.get("inline") == "always", called


def test_most_functions_are_called_by_kernels():
    """What the test above is about."""
    assert len(set().union(*(called for name in MODULES for called in compiled(name)[1].values()))) > 90
