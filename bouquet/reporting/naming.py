"""What a run is called when nobody names it."""

from __future__ import annotations

from datetime import datetime

from bouquet.config import RunConfig


def run_name(config: RunConfig) -> str:
    """runs/<time>-<strategy>-<dataset>, relative to where the program was started."""
    data = "devices" if config.catalogue_file else config.dataset
    return f"runs/{datetime.now():%Y-%m-%d-%H%M%S}-{config.strategy}-{data}"
