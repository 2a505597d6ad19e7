"""Free ports, and whether a SuperLink answers on one."""

from __future__ import annotations

import socket
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path

# An answer this young is not asked for again.
FRESH_SECONDS = 2.0

_given: set[int] = set()


def free_port() -> int:
    """A port of the loopback that nobody listens on, and that this process was not given before."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


def is_healthy(address: str, authority: Path | None = None, proxy: str = "") -> bool:
    """Whether a SuperLink says that it is well.

    Args:
        address: HOST:PORT of its control API.
        authority: certificate that its own must be signed with; None where it speaks plain HTTP.
        proxy: URL of the way there; "": there is none.
    """
    context = ssl.create_default_context(cafile=str(authority)) if authority else None
    scheme = "https" if authority else "http"
    # A proxy of the environment is not the way to a SuperLink.
    ways = {scheme: proxy} if proxy else {}
    handlers = [urllib.request.ProxyHandler(ways)] + ([urllib.request.HTTPSHandler(context=context)] if context else [])
    try:
        with urllib.request.build_opener(*handlers).open(f"{scheme}://{address}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class Answering:
    """Whether a SuperLink elsewhere is there: it answers, or did so a moment ago.

    A busy machine and a short loss of the network make single answers late; a run of hours must not end for that.

    Args:
        address, authority, proxy: as for `is_healthy`.
        patience: seconds of silence that are not yet the end.
    """

    def __init__(self, address: str, authority: Path | None, proxy: str = "", patience: float = 60.0) -> None:
        self._address, self._authority, self._proxy, self._patience = address, authority, proxy, patience
        self._answered: float | None = None

    def __call__(self) -> bool:
        if self._answered is not None and time.monotonic() - self._answered < FRESH_SECONDS:
            return True
        if is_healthy(self._address, self._authority, self._proxy):
            self._answered = time.monotonic()
            return True
        return self._answered is not None and time.monotonic() - self._answered < self._patience
