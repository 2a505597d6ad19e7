"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("bouquet", "flwr", "torch", "numpy")


def describe_machine() -> dict[str, object]:
    """Processor, cores, memory, system, and the versions that matter."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
