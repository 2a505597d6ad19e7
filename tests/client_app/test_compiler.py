"""How kernels are compiled."""

import pytest
from numba.core.registry import CPUDispatcher

from client_app.training import compiler

MODULES = [name for name in compiler._MODULES if name != "kernels_compile"]


@pytest.mark.parametrize("name", MODULES)
def test_a_kernel_holds_whatever_it_calls(name):
    """What is linked and not inlined may be another kernel's copy, which rounds differently."""
    functions = {key: value for key, value in vars(compiler._load(name)).items() if isinstance(value, CPUDispatcher)}
    assert functions
    for function in functions.values():
        for called in functions.keys() & set(function.py_func.__code__.co_names):
            options = functions[called].targetoptions
            assert options.get("forceinline") or options.get("inline") == "always", called


def test_most_functions_are_called_by_kernels():
    """What the test above is about."""
    called = set()
    for name in MODULES:
        functions = {key for key, value in vars(compiler._load(name)).items() if isinstance(value, CPUDispatcher)}
        for key in functions:
            called |= functions & set(getattr(compiler._load(name), key).py_func.__code__.co_names)
    assert len(called) > 90
