"""Devices that only count. Nothing here imports more than numpy."""
