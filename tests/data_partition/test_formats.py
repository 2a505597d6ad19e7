"""One tiny set in every published format, read through `load`."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_partition import DATASETS, load, make_split
from tests.data_partition.tables import raw_histories, write

# In all of them user 1 meets item 20 and then item 3, and user 2 meets item 3.
FORMATS: dict[str, dict[str, str | bytes]] = {
    "ml-100k": {
        "u.data": "1\t3\t5\t900\n2\t3\t1\t100\n1\t20\t2\t800\n",
        "u.item": "3|Café (1995)|01-Jan-1995||http://x|0|1\n20|Up: again|||\n".encode("iso-8859-1"),
    },
    "ml-1m": {
        "ratings.dat": "1::3::5::900\n2::3::1::100\n1::20::2::800\n",
        "movies.dat": "3::Café (1995)::Drama|War\n20::Up: again::Comedy\n".encode("iso-8859-1"),
    },
    "ml-latest-small": {
        "ratings.csv": "userId,movieId,rating,timestamp\n1,3,4.5,900\n2,3,1.0,100\n1,20,2.0,800\n",
        "movies.csv": 'movieId,title,genres\n3,Café (1995),Drama\n20,"Up: again",Comedy\n',
    },
    "filmtrust": {"ratings.dat": "1 20 2\n1 3 3.5\n2  3 4 \n"},
    "douban-book": {"ratings.dat": "1\t20\t0\n1\t3\t5\n2\t3\t4\n"},
    "lastfm-2k": {
        "user_artists.dat": "userID\tartistID\tweight\r\n1\t20\t13883\r\n1\t3\t1\r\n2\t3\t7\r\n",
        "artists.dat": "id\tname\turl\tpictureURL\r\n3\tCafé (1995)\thttp://x\t\r\n20\tUp: again\t\t\r\n",
    },
    "gowalla": {"train.txt": "1 20\n2 3\n", "test.txt": "1 3\n2\n"},
    "yelp2018": {"train.txt": "1 20\n2 3\n", "test.txt": "1 3\n2\n"},
    "amazon-book": {"train.txt": "1 20\n2 3\n", "test.txt": "1 3\n2\n"},
    "amazon-video-games": {"Video.txt": "1 20\n1 3\n2 3\n"},
    "amazon-beauty-5core": {
        "train.txt": "1\t20\t800\n",
        "valid.txt": "2\t3\t100\n",
        "test.txt": "1\t3\t800\n",
        "imap.json": '{"B000A": 3, "B000B": 20}',
    },
    "amazon-beauty": {"ratings_Beauty.csv": "1,3,5.0,900\n2,3,1.0,100\n1,20,2.0,800\n"},
    "wikipedia": {
        "wikipedia.csv": "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
        "2,3,0.0,0,-0.1,0.2,0.3\n1,20,36.0,0,0.5\n1,3,77.5,1\n1,20,78.0,0,0.1,0.2\n"
    },
    "qb-article": {
        "QB-article.csv": "user_id,item_id,click,like,gender\n1,20,1,0,\n1,99,0,0,1\n1,3,1,1,2\n2,3,1,0,\n2,20,0,0,1\n"
    },
    "microlens-100k": {
        "MicroLens-100K_pairs.csv": "user,item,timestamp\n1,3,900\n2,3,100\n1,20,800\n",
        "MicroLens-100k_titles.csv": 'item,title\n3,Café (1995)\n20,"Up: again"\n',
    },
    "anime": {
        "rating.csv": "user_id,anime_id,rating\n1,20,-1\n1,3,8\n2,3,10\n",
        "anime.csv": "anime_id,name,genre,type\n3,Café (1995),Drama,TV\n20,Up&#58; again,,\n",
    },
}
WITH_TITLES = {name for name, files in FORMATS.items() if len(files) == 2 and DATASETS[name].extras}


def fill(folder: Path, files: dict[str, str | bytes], packed: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        write(folder / (f"{name}.gz" if packed else name), content)
    return folder


def test_every_set_is_tried():
    assert set(FORMATS) | {"synthetic"} == set(DATASETS)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("name", FORMATS)
def test_format(tmp_path, name, packed):
    made = load(name, str(fill(tmp_path / "raw", FORMATS[name], packed)))
    assert raw_histories(made) == {"1": ["20", "3"], "2": ["3"]}
    assert made.has_time == DATASETS[name].has_time
    assert made.name == name
    if name in WITH_TITLES:
        assert made.titles == ("Café (1995)", "Up: again")
    elif name == "amazon-beauty-5core":
        assert made.titles == ("B000A", "B000B")
    else:
        assert made.titles == ("", "")


def test_a_published_split_comes_with_its_rows(tmp_path):
    """User 0 has items 7, 5 and 9 for training and 4 and 5 for test, of which 5 is known: it stays for training."""
    files = {"train.txt": "0 7 5 9\n1 5\n", "test.txt": "0 4 5\n1\n"}
    made = load("gowalla", str(fill(tmp_path / "raw", files)))
    assert raw_histories(made) == {"0": ["7", "5", "9", "4"], "1": ["5"]}
    assert made.held_out is not None
    assert made.held_out.tolist() == [0, 0, 0, 2, 0]
    assert made.duplicates == 1


def test_three_published_parts_come_with_their_rows(tmp_path):
    """User 0 trained on 8 and 7, validated with 9 and is tested with 4, of one day, whose order is drawn."""
    files = {"train.txt": "0\t7\t5\n0\t8\t2\n", "valid.txt": "0\t9\t5\n", "test.txt": "0\t4\t5\n"}
    made = load("amazon-beauty-5core", str(fill(tmp_path / "raw", files)))
    assert made.held_out is not None
    (history,) = raw_histories(made).values()
    assert dict(zip(history, made.held_out.tolist(), strict=True)) == {"8": 0, "7": 0, "9": 1, "4": 2}
    for share, train, validation in ((0.1, ["8", "7"], ["9"]), (0.5, ["8", "7"], ["9"]), (0.0, ["8", "7", "9"], [])):
        split = make_split(made, "published", validation=share)
        parts = [[str(made.item_ids[item]) for item in part.values] for part in (split.train, split.validation)]
        assert parts[0][0] == "8"
        assert sorted(parts[0]) == sorted(train)
        assert parts[1] == validation
        assert made.item_ids[split.test.values].tolist() == ["4"]


@pytest.mark.parametrize("name", sorted(WITH_TITLES))
def test_titles_may_be_absent(tmp_path, name):
    files = {file: content for file, content in FORMATS[name].items() if file not in DATASETS[name].extras}
    files.pop("MicroLens-100k_titles.csv", None)
    assert load(name, str(fill(tmp_path / "raw", files))).titles == ("", "")


def test_bytes_that_fit_no_encoding_cost_one_letter(tmp_path):
    files = FORMATS["ml-latest-small"] | {"movies.csv": b"movieId,title\n3,Caf\xe9\n20,Up\n"}
    assert load("ml-latest-small", str(fill(tmp_path / "raw", files))).titles == ("Caf\ufffd", "Up")


def test_repeated_edits_can_be_kept(tmp_path):
    folder = str(fill(tmp_path / "raw", FORMATS["wikipedia"]))
    assert load("wikipedia", folder).duplicates == 1
    assert raw_histories(load("wikipedia", folder, repeats="keep")) == {"1": ["20", "3", "20"], "2": ["3"]}


def test_byte_order_mark_blank_lines_and_no_last_newline(tmp_path):
    files = {"ratings.csv": "\ufeffuserId,movieId,rating,timestamp\r\n1,20,4.5,900\r\n\r\n1,3,1,901"}
    assert raw_histories(load("ml-latest-small", str(fill(tmp_path / "raw", files)))) == {"1": ["20", "3"]}
    files = {"u.data": "\ufeff1\t20\t3\t1\n\n1\t3\t3\t2"}
    assert raw_histories(load("ml-100k", str(fill(tmp_path / "raw", files)))) == {"1": ["20", "3"]}
