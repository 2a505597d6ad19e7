"""The SuperLink as it is started here: Flower's, with less work for its database."""

import inspect

from bouquet.engines.superlink import at_most_every


class Counted:
    """Something whose method is called."""

    def __init__(self):
        self.calls = 0

    def look(self):
        """Counts."""
        self.calls += 1


def test_a_method_is_called_seldom_of_each_object_by_itself():
    seldom, always = at_most_every(3600.0, Counted.look), at_most_every(0.0, Counted.look)
    one, other = Counted(), Counted()
    for _ in range(3):
        seldom(one)
    seldom(other)
    assert (one.calls, other.calls) == (1, 1)
    for _ in range(3):
        always(one)
    assert one.calls == 4


def test_flower_is_as_this_module_has_it():
    """Looked up where it is replaced: the method by its class, the settings of the database by their module."""
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.supercore import sql_mixin
    from flwr.supercore.corestate.sql_corestate import SqlCoreState

    assert SqlLinkState._cleanup_expired_task_tokens is SqlCoreState._cleanup_expired_task_tokens
    assert "self._cleanup_expired_task_tokens()" in inspect.getsource(SqlLinkState.get_run_status)
    assert ("busy_timeout", "5000") in sql_mixin.SQLITE_PRAGMAS
    assert "in SQLITE_PRAGMAS:" in inspect.getsource(sql_mixin._set_sqlite_pragmas)
