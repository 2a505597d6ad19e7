"""`deployment/pin-base.sh` against a registry, pulled from by a real Docker engine."""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.conftest import REPOSITORY

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def no_engine():
    """Why nothing can be pulled here, or ""."""
    if not shutil.which("docker"):
        return "no docker here"
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        return "no Docker engine answers (DOCKER_HOST)"
    return ""


def digest_of(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def image(text):
    """An image of one file: its manifest, and all contents by digest."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("said")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    layer = packed.getvalue()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]},
        }
    ).encode()
    described = [
        {"mediaType": kind, "size": len(content), "digest": digest_of(content)}
        for kind, content in (
            ("application/vnd.docker.container.image.v1+json", config),
            ("application/vnd.docker.image.rootfs.diff.tar", layer),
        )
    ]
    manifest = json.dumps(
        {"schemaVersion": 2, "mediaType": MANIFEST, "config": described[0], "layers": described[1:]}
    ).encode()
    return manifest, {digest_of(content): content for content in (manifest, config, layer)}


@contextmanager
def registry(tags):
    """A registry on the loopback, which engines take without TLS.

    Args:
        tags: manifest and contents by tag; what is put in later is served, too.
    """

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            *_, kind, name = ["", "", *self.path.split("/")]
            contents = {key: value for _, held in tags.values() for key, value in held.items()}
            found = tags[name][0] if kind == "manifests" and name in tags else contents.get(name)
            if self.path == "/v2/":
                found = b"{}"
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", MANIFEST if kind == "manifests" else "application/octet-stream")
            self.send_header("Content-Length", str(len(found or b"")))
            if found:
                self.send_header("Docker-Content-Digest", digest_of(found))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(found or b"")

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}/base"
    finally:
        server.shutdown()
        name = f"127.0.0.1:{server.server_address[1]}/base"
        kept = subprocess.run(["docker", "images", "--quiet", name], capture_output=True, text=True, check=False).stdout
        subprocess.run(["docker", "rmi", "--force", *kept.split()], capture_output=True, check=False)


@pytest.fixture
def place(tmp_path):
    """A folder as the repository, with the script in it."""
    (tmp_path / "deployment").mkdir()
    shutil.copy(REPOSITORY / "deployment/pin-base.sh", tmp_path / "deployment")
    return tmp_path


def pin(place, *words):
    return subprocess.run(
        ["sh", str(place / "deployment/pin-base.sh"), *words], capture_output=True, text=True, check=False, cwd="/"
    )


@pytest.mark.slow
@pytest.mark.skipif(bool(no_engine()), reason=no_engine() or "-")
def test_the_tag_of_today_is_held_until_it_is_asked_for_again(place):
    tags = {"3": image(b"one")}
    before, after = digest_of(tags["3"][0]), digest_of(image(b"two")[0])
    (place / ".env").write_text("BOUQUET_HOST=example.org\nBOUQUET_PYTHON_IMAGE=old\n")
    with registry(tags) as name:
        done = pin(place, f"{name}:3")
        assert done.returncode == 0, done.stderr
        assert (place / ".env").read_text() == f"BOUQUET_HOST=example.org\nBOUQUET_PYTHON_IMAGE={name}@{before}\n"
        tags["3"] = image(b"two")
        # The tag has moved on; what is written leads to the same image as before.
        tags["held"] = image(b"one")
        again = subprocess.run(["docker", "pull", f"{name}@{before}"], capture_output=True, text=True, check=False)
        assert again.returncode == 0, again.stderr
        assert pin(place, f"{name}:3").returncode == 0
        assert (place / ".env").read_text() == f"BOUQUET_HOST=example.org\nBOUQUET_PYTHON_IMAGE={name}@{after}\n"
        assert pin(place, f"{name}:none").returncode != 0
        assert (place / ".env").read_text().endswith(f"@{after}\n")
    assert sorted(path.name for path in place.iterdir()) == [".env", "deployment"]


@pytest.mark.parametrize(
    ("word", "says"), [("python", "has no tag"), ("127.0.0.1:5000/python", "has no tag"), ("a@sha256:0", "a digest")]
)
def test_what_names_no_tag_is_refused_before_anything_is_pulled(place, word, says):
    done = pin(place, word)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (place / ".env").exists()
