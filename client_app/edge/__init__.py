"""A device of one person, with a history that grows."""
