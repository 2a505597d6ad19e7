"""Where the files of a data set come from."""

from __future__ import annotations

import hashlib
import io
import re
import socket
import threading
import zipfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bouquet.errors import ConfigError, DataError
from data_partition import DATASETS, load
from data_partition.catalogue import Download
from data_partition.fetch import locate

U_DATA = b"1\t20\t3\t1\n2\t20\t3\t1\n1\t3\t3\t2\n"
U_ITEM = b"3|three|\n20|twenty|\n"
COUNTS = (2, 2, 3)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A per-user cache of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "bouquet"


@pytest.fixture
def site(tmp_path):
    """A web site: the folder that it serves, and its address."""
    folder = tmp_path / "site"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def archive(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in files.items():
            file.writestr(f"ml-100k/{name.replace('_', '.')}", content)
    return buffer.getvalue()


def movielens(url: str, content: bytes = U_DATA, counts=COUNTS):
    return replace(DATASETS["ml-100k"], download=Download(url, {"u.data": hashlib.sha256(content).hexdigest()}, counts))


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*")) if folder.exists() else []


def test_the_folder_itself_its_parent_or_an_alias(tmp_path):
    files = {"ratings.csv": "userId,movieId,rating,timestamp\n1,2,3,4\n"}
    for name in ("ml-latest-small", "ml-latest-small-2018"):
        folder = tmp_path / name / name
        folder.mkdir(parents=True)
        for file, content in files.items():
            (folder / file).write_text(content)
        assert locate(DATASETS["ml-latest-small"], str(folder)) == folder
        assert locate(DATASETS["ml-latest-small"], str(folder.parent)) == folder


def test_the_message_names_the_folder_where_the_file_belongs(tmp_path):
    folder = tmp_path / "filmtrust"
    folder.mkdir()
    for data_dir in (tmp_path, folder):
        with pytest.raises(DataError, match=re.escape(f"FilmTrust is not in {folder} and cannot")):
            load("filmtrust", str(data_dir))


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "ml-100k").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="MovieLens-100K cannot be stored in"):
        locate(movielens("http://127.0.0.1:9/ml-100k.zip"), str(tmp_path))


def test_the_ratings_of_another_set_are_not_taken(tmp_path):
    folder = tmp_path / "filmtrust"
    folder.mkdir()
    (folder / "ratings.dat").write_text("1 2 3\n")
    assert load("filmtrust", str(folder)).num_users == 1
    with pytest.raises(DataError, match="Douban-Book is not in"):
        load("douban-book", str(folder))


def test_a_set_that_cannot_be_downloaded(cache):
    with pytest.raises(DataError) as error:
        load("amazon-beauty-5core")
    assert str(error.value) == (
        f"Amazon Beauty, 5-core is not in {cache}/amazon-beauty-5core and cannot be downloaded automatically. "
        "Put train.txt, valid.txt and test.txt into that folder, or name its folder with data-dir."
    )


def test_the_home_folder_is_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    with pytest.raises(DataError, match=re.escape("FilmTrust is not in ~/.cache/bouquet/filmtrust and cannot")):
        load("filmtrust")


def test_no_network(cache):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/ml-100k.zip"
    with pytest.raises(DataError) as error:
        locate(movielens(url))
    assert str(error.value) == (
        f"MovieLens-100K is not in {cache}/ml-100k and the download failed (no network). Put u.data into that folder, "
        "or name its folder with data-dir."
    )
    assert left_behind(cache) == ["ml-100k"]


@pytest.mark.parametrize("under_data_dir", [False, True])
def test_download(site, cache, tmp_path, under_data_dir):
    folder, url = site
    (folder / "ml-100k.zip").write_bytes(archive(u_data=U_DATA, u_item=U_ITEM, README=b"not needed"))
    data_dir = str(tmp_path) if under_data_dir else ""
    found = locate(movielens(f"{url}/ml-100k.zip"), data_dir)
    assert found == (tmp_path if under_data_dir else cache) / "ml-100k"
    assert left_behind(found) == ["u.data", "u.item"]
    made = load("ml-100k", str(found))
    assert (made.num_users, made.titles) == (2, ("three", "twenty"))
    (folder / "ml-100k.zip").unlink()
    assert locate(movielens(f"{url}/ml-100k.zip"), data_dir) == found, "a second time needs no download"


def test_single_file_download(site, cache):
    folder, url = site
    (folder / "wikipedia.csv").write_text("u,i,ts,label\n1,2,0.0,0,.5\n3,2,1.0,0,.5\n")
    dataset = replace(DATASETS["wikipedia"], download=Download(f"{url}/wikipedia.csv", counts=(2, 1, 2)))
    assert locate(dataset) == cache / "wikipedia"
    assert load("wikipedia").num_interactions == 2


@pytest.mark.parametrize(
    ("content", "counts", "message"),
    [
        (archive(u_data=U_DATA + b"3\t3\t3\t3\n"), COUNTS, "the SHA-256 of u.data is"),
        (archive(u_data=U_DATA), (2, 2, 4), "users, items and rows are 2 / 2 / 3 instead of 2 / 2 / 4"),
        (archive(u_item=U_ITEM), COUNTS, "The download of MovieLens-100K lacks u.data."),
        (archive(u_data=U_DATA)[:-30], COUNTS, "The download of MovieLens-100K is damaged"),
        (b"<html>Please log in</html>", COUNTS, "The download of MovieLens-100K is damaged"),
    ],
    ids=["hash", "counts", "lacks", "cut", "html"],
)
def test_a_wrong_download_leaves_nothing(site, cache, content, counts, message):
    folder, url = site
    (folder / "ml-100k.zip").write_bytes(content)
    with pytest.raises(DataError, match=re.escape(message)):
        locate(movielens(f"{url}/ml-100k.zip", counts=counts))
    assert left_behind(cache) == ["ml-100k"]


def test_the_server_has_no_such_file(site, cache):
    with pytest.raises(DataError, match=re.escape("the download failed (the server answered 404)")):
        locate(movielens(f"{site[1]}/gone.zip"))


def test_a_connection_that_breaks_off(cache):
    """The server promises 1,000 bytes and sends 10."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n0123456789")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(DataError, match=r"the download failed \(the connection broke off\)"):
            locate(movielens(f"http://127.0.0.1:{listening.getsockname()[1]}/ml-100k.zip"))
        thread.join()
    assert left_behind(cache) == ["ml-100k"]


def test_unknown_names(tmp_path):
    with pytest.raises(
        ConfigError, match=r"There is no dataset 'ml-100'\. Did you mean 'ml-100k'\? Known: amazon-beauty,"
    ):
        load("ml-100")
    with pytest.raises(DataError, match="data-dir .* is not a folder"):
        load("ml-100k", str(tmp_path / "none"))


def test_the_catalogue_is_consistent():
    for name, dataset in DATASETS.items():
        assert dataset.name == name
        assert (dataset.read is None) == (name == "synthetic")
        if dataset.download is not None:
            assert set(dataset.download.sha256) <= {*dataset.files, *dataset.extras}
            assert all(re.fullmatch("[0-9a-f]{64}", value) for value in dataset.download.sha256.values())
