"""Whether a SuperLink is there, asked of a real HTTP server that comes and goes."""

from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from bouquet.engines import ports
from bouquet.engines.ports import Answering, free_port
from tests.runs.helpers import await_condition


class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *arguments):
        """Nothing."""


@contextmanager
def server(port):
    with ThreadingHTTPServer(("127.0.0.1", port), Health) as made:
        thread = Thread(target=made.serve_forever)
        thread.start()
        yield
        made.shutdown()
        thread.join()


def test_a_superlink_that_never_answered_is_not_there():
    assert not Answering(f"127.0.0.1:{free_port()}", None)()


def test_silence_counts_only_when_it_lasts(monkeypatch):
    """Patience of 1.5 s: a server that is away for less was there all the time, and one that stays away is gone."""
    monkeypatch.setattr(ports, "FRESH_SECONDS", 0.0)
    port = free_port()
    answering = Answering(f"127.0.0.1:{port}", None, patience=1.5)
    with server(port):
        assert answering()
    assert answering(), "it answered a moment ago"
    with server(port):
        assert answering()
    assert answering()
    await_condition(lambda: not answering(), seconds=60)
