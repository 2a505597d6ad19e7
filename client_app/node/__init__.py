"""One node: its users, what it answers, and what it computes for them."""
