"""The SuperLink as it is started here: Flower's, with less work for its database."""

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
