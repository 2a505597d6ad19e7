"""The server: configuration, strategy, rounds, results."""
