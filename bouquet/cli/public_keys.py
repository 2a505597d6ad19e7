"""Public keys of nodes as device and operator both name them, so that they can compare what they see."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path


def fingerprint(public: Path) -> str:
    """The fingerprint of a public key, as `ssh-keygen -l` says it; "" where there is no such file."""
    try:
        blob = base64.b64decode(public.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return ""
    return f"SHA256:{base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip('=')}"


def named(public: Path) -> str:
    """The path of a public key, with its fingerprint in brackets."""
    found = fingerprint(public)
    return f"{public} ({found})" if found else str(public)
