"""The only way to a SuperLink's control port: a tunnel of TLS in which both sides show a certificate of the authority.

Flower's control API has no accounts: whoever reaches its port submits runs, and a run is code on every node. So the
port itself is opened on the loopback alone, and `Gate` stands before it:

    flwr ── loopback ──> Tunnel ══ TLS, both sides known ══> Gate ── loopback ──> SuperLink
    (TLS from `flwr` to the SuperLink goes through all of it, unopened)

Flower's programs cannot show a certificate, but all of them go through a proxy that the environment names. `Tunnel` is
that proxy: for this process and its children alone, who know its password, and to one address alone.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import secrets
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Self

from bouquet.errors import ConfigError

LOOPBACK = "127.0.0.1"
# Roles that have a certificate for the gate, by the name of its file and of its subject.
ROLES = ("operator", "executor")
_HANDSHAKE_SECONDS, _HEADER_SECONDS = 10.0, 10.0
_CHUNK_BYTES = 2**16
# More at once than operators, executors and their children ever have.
_MOST_CONNECTIONS = 512

_Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class _Relay:
    """A server in a thread of its own, until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._open = 0

    def _listen(self, handler: _Handler, host: str, port: int, context: ssl.SSLContext | None) -> None:
        async def start() -> asyncio.Server:
            patience = _HANDSHAKE_SECONDS if context else None
            return await asyncio.start_server(handler, host, port, ssl=context, ssl_handshake_timeout=patience)

        # What a stranger does to the handshake is no event of ours.
        self._loop.set_exception_handler(lambda loop, problem: None)
        self._thread.start()
        try:
            self._server = asyncio.run_coroutine_threadsafe(start(), self._loop).result()
        except OSError as error:
            self.close()
            raise ConfigError(f"{host}:{port} cannot be listened on ({error}).") from None

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """End the server and all its connections."""

        async def end() -> None:
            if self._server:
                self._server.close()
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    async def _join(
        self, here: tuple[asyncio.StreamReader, asyncio.StreamWriter], host: str, port: int, first: bytes = b"",
        context: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        """Carry bytes between a connection and a new one to an address, until either ends.

        Args:
            first: what `here` is told once the other one stands.
        """
        there: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._open += 1
        try:
            if self._open > _MOST_CONNECTIONS:
                return
            there = await asyncio.open_connection(host, port, ssl=context)
            here[1].write(first)
            ways = [asyncio.ensure_future(_carry(here[0], there[1])), asyncio.ensure_future(_carry(there[0], here[1]))]
            _, left = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in left:
                way.cancel()
        except OSError:
            pass  # the other side is not there: who asked sees its connection end
        finally:
            self._open -= 1
            for end in (here, there):
                if end:
                    end[1].close()


class Gate(_Relay):
    """Lets whoever shows a certificate of an operator or an executor through to a port of the loopback.

    Args:
        host, port: where it listens; a name is looked up and stands for its addresses alone.
        target: port of the SuperLink on the loopback.
        keys: folder with ca.crt, server.crt and server.key.
    Raises:
        ConfigError: it cannot listen there.
    """

    def __init__(self, host: str, port: int, target: int, keys: Path) -> None:
        super().__init__()
        self._target = target
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(keys / "server.crt", keys / "server.key")
        context.load_verify_locations(keys / "ca.crt")
        # OpenSSL takes only certificates that were made for clients, so a server's own is none.
        context.verify_mode = ssl.CERT_REQUIRED
        self._listen(self._serve, host, port, context)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        certificate: Mapping[str, Any] = writer.get_extra_info("peercert") or {}
        names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
        if names not in [[subject_of(role)] for role in ROLES]:
            writer.close()
            return
        await self._join((reader, writer), LOOPBACK, self._target)


class Tunnel(_Relay):
    """A proxy on the loopback, for this process and its children, whose only way out is a gate.

    Args:
        address: HOST:PORT of the gate; both of its certificates, its own and the SuperLink's, must be for HOST.
        keys: folder with ca.crt, ROLE.crt and ROLE.key.
        role: one of `ROLES`.
    Raises:
        ConfigError: the address is none, or a key is missing.
    """

    def __init__(self, address: str, keys: Path, role: str) -> None:
        super().__init__()
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"A SuperLink's address is HOST:PORT, not '{address}'.")
        self._host, self._port = host.strip("[]"), int(port)
        for name in ("ca.crt", f"{role}.crt", f"{role}.key"):
            if not (keys / name).is_file():
                raise ConfigError(f"{keys / name} is missing. Make keys with: bouquet deploy keys")
        self._context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3
        self._context.load_cert_chain(keys / f"{role}.crt", keys / f"{role}.key")
        self._password = secrets.token_urlsafe(32)
        self._listen(self._serve, LOOPBACK, 0, None)

    @property
    def proxy(self) -> str:
        """The proxy's URL, password and all: for the environment, never for a command line."""
        return f"http://bouquet:{self._password}@{LOOPBACK}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What makes Flower's programs go through it."""
        names = ("HTTPS_PROXY", "https_proxy")
        without = ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")
        return dict.fromkeys(names, self.proxy) | dict.fromkeys(without, "")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            header = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEADER_SECONDS)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError):
            writer.close()
            return
        first, *lines = header.decode("latin-1").split("\r\n")
        given = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        expected = "Basic " + base64.b64encode(f"bouquet:{self._password}".encode()).decode()
        words = first.split()
        host, _, port = (words[1] if len(words) == 3 and words[0] == "CONNECT" else "").rpartition(":")
        if not hmac.compare_digest(given.get("proxy-authorization", ""), expected):
            answer = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
        elif (host.strip("[]"), port) != (self._host, str(self._port)):
            answer = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
        else:
            there = b"HTTP/1.1 200 Connection established\r\n\r\n"
            await self._join((reader, writer), self._host, self._port, there, self._context)
            return
        writer.write(answer)
        writer.close()


def subject_of(role: str) -> str:
    """The common name in a role's certificate."""
    return f"bouquet {role}"


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
