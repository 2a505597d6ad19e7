"""What compiled steps of a device-side method have to do, whichever method it is."""

import numpy as np

from client_app.training import compiled
from tests.client_app.method_tasks import make_task, outcome

# One item, some, none, and more rows than a tile has.
SIZES = [1, 6, 150, 0, 9, 2]


def steps_of(task):
    """The steps that the method has compiled for the task; None: there are none."""
    return task.personalizations[0].compiled(task)


def assert_equal(found, expected, rtol=1e-11, atol=1e-10):
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=rtol, atol=atol, err_msg=name)


def assert_equal_to_the_loop(options, seed=0, sizes=SIZES, atol=1e-10):
    """Returns what the loop made of the task."""
    assert steps_of(make_task(sizes, seed, **options)) is not None
    expected, found = (outcome(make_task(sizes, seed, **options), backend) for backend in ("loop", "numba"))
    assert_equal(found, expected, atol=atol)
    return expected


def assert_single_precision_is_near_double_precision(options, sizes=SIZES):
    found = outcome(make_task(sizes, **options, dtype=np.float32), "numba")
    assert_equal(found, outcome(make_task(sizes, **options), "loop"), rtol=1e-3, atol=2e-5)


def assert_threads_and_blocks_change_nothing(monkeypatch, module, options, sizes=SIZES):
    """`module` has the size of a block."""
    found = []
    for count, block in (("1", 16 * 2**20), ("2", 16 * 2**20), ("1", 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", count)
        monkeypatch.setattr(module, "_BLOCK_BYTES", block)
        found.append(outcome(make_task(sizes, **options), "numba"))
    for other in found[1:]:
        assert_equal(other, found[0], rtol=0, atol=0)


def assert_who_has_diverged_is_nothing_to_the_others(name, options, sizes=SIZES):
    expected, task = outcome(make_task(sizes, **options), "numba"), make_task(sizes, **options)
    task.private[name][2] = np.nan
    found, others = outcome(task, "numba"), np.arange(len(sizes)) != 2
    assert np.isnan(found["change of item_embedding"][2]).any()
    for array, values in expected.items():
        np.testing.assert_array_equal(found[array][others], values[others], err_msg=array)


def assert_nothing_is_compiled_without_numba(monkeypatch, module, names, options, sizes=SIZES):
    """`names` of `module` find the loops."""
    expected = outcome(make_task(sizes, **options), "loop")
    for place, functions in ((compiled, ("kernels", "row_kernels")), (module, names)):
        for name in functions:
            monkeypatch.setattr(place, name, lambda: None)
    assert steps_of(make_task(sizes, **options)) is None
    assert_equal(outcome(make_task(sizes, **options), "numba"), expected)
