"""How fast it is: every figure a ratio within one run, because machines are noisy and differ."""
