"""Common ground of server and device: configuration, wire format, randomness, evaluation, reporting."""

__version__ = "0.1.0"
