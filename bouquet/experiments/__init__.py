"""Comparing on equal ground: baselines beside a run, and tables of many runs."""
