"""The command line: the one place that sees every other package."""
