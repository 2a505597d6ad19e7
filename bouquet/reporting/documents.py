"""Documents of a run as JSON, with a digest of what they say, so that a damaged one is not taken for another."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bouquet.errors import DataError
from bouquet.files import digest_of, write_atomically


def write_document(path: Path, content: Mapping[str, Any], *, private: bool = False) -> None:
    """Write a document, and its digest after all else that is in it."""
    document = finite(content)
    text = json.dumps({**document, "digest": _digest(document)}, indent=2) + "\n"
    write_atomically(path, text, private=private)


def read_document(path: Path) -> dict[str, Any]:
    """What `write_document` wrote, without the digest; empty if it never did.

    Raises:
        DataError: it is damaged, or it has no digest.
    """
    try:
        document = json.loads(path.read_bytes())
        if not isinstance(document, dict):
            raise ValueError("it is no object")
        if document.pop("digest", None) != _digest(document):
            raise ValueError("its digest does not fit, or it has none, as in folders of earlier releases")
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}).") from None
    return document


def finite(value: Any) -> Any:
    """The same value with NaN and infinity as null, which JSON has no other word for."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _digest(document: Mapping[str, Any]) -> str:
    return digest_of(json.dumps(document).encode())
