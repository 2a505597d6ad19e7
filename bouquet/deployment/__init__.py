"""A federation of real processes: keys, SuperLink, SuperNodes, and what an operator sees of them."""
