"""A page in headless Chromium, as a reader has it: spoken to over two pipes, without any package."""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--no-first-run",
)
_FLAGS += ("--disable-background-networking", "--force-device-scale-factor=1", "--remote-debugging-pipe")


class Page:
    """One tab. Everything that its console says, and every request for something else than the page, is kept."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._number, self._rest = to, back, 0, b""
        self._session = ""
        self.said: list[str] = []
        self.requests: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{part}.enable")

    def open(self, path: Path, *, width: int = 1200, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Load a file at a size and under a theme, or as it is printed (`media`)."""
        mobile = width < 600
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self._ask("Emulation.setEmulatedMedia", media=media, features=[theme, still])
        self._ask("Page.navigate", url=path.absolute().as_uri())
        self._until("Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self._ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self._ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def screenshot(self, *, whole: bool = True) -> bytes:
        """The page as PNG."""
        return base64.b64decode(self._ask("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self._ask("Page.printToPDF")["data"])

    def close(self) -> None:
        self._session = ""
        self._ask("Browser.close")

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._number:
                assert "error" not in found, (method, found["error"])
                return found["result"]

    def _until(self, event: str) -> None:
        while self._read().get("method") != event:
            pass

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            chunk = os.read(self._back, 2**16)
            assert chunk, "Chromium ended too early"
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        if message.get("method") in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.said.append(json.dumps(message["params"]))
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        return dict(message)


@contextmanager
def browser(home: Path) -> Iterator[Page]:
    """Chromium with an empty profile, ended afterwards; the test is skipped where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"there is no Chromium on this machine (looked for {', '.join(NAMES)})")
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    # It reads messages from file 3 and writes to file 4, which a shell makes of whatever numbers the pipes have.
    command = shlex.join([program, *_FLAGS, f"--user-data-dir={home / 'profile'}"])
    process = subprocess.Popen(
        ["bash", "-c", f"exec 3<&{in_read} 4>&{out_write} {command}"],
        pass_fds=(in_read, out_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(home)},
    )
    for end in (in_read, out_write):
        os.close(end)
    try:
        page = Page(in_write, out_read)
        yield page
        page.close()
    finally:
        process.terminate()
        process.wait(timeout=30)
        for end in (in_write, out_read):
            os.close(end)
