"""The data sets that are known by name: files, reader, published counts, terms, and where to get them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bouquet.installed import Names
from data_partition.readers.amazon import read_five_core, read_ratings_csv, read_sequences
from data_partition.readers.anime import read_anime
from data_partition.readers.lastfm import read_lastfm
from data_partition.readers.lightgcn import read_lightgcn
from data_partition.readers.microlens import read_microlens
from data_partition.readers.movielens import read_1m, read_100k, read_csv
from data_partition.readers.ratings import read_ratings
from data_partition.readers.raw import RawData
from data_partition.readers.tenrec import read_qb_article
from data_partition.readers.wikipedia import read_wikipedia


@dataclass(frozen=True)
class Counts:
    """Users, items and interactions as printed somewhere, after dropping users below `min_interactions`."""

    source: str
    users: int
    items: int
    interactions: int
    min_interactions: int = 0


@dataclass(frozen=True)
class Download:
    """A public file that holds the data set.

    Attributes:
        url: of a .zip, or of a file that is used as it is.
        sha256: file name inside the archive to SHA-256 of its content, for the files that never change.
        counts: users, items and rows that the files must have; checked after the download.
    """

    url: str
    sha256: Mapping[str, str] = field(default_factory=dict)
    counts: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Dataset:
    """One data set.

    Attributes:
        name: in configurations.
        title: in sentences.
        files: what the reader needs.
        extras: what it also uses where it is there (titles).
        read: folder to rows; None for the built-in set, which has no files.
        has_time: whether the order of a history is the order in time.
        published: counts of the papers, for comparison.
        terms: licence in one line.
        aliases: other names of the folder.
        download: None where there is no stable public address.
        note: what one should know before using it.
        caution: why no figure of this set is quite what it seems, in a few words that stand beside every one of them.
    """

    name: str
    title: str
    files: tuple[str, ...]
    read: Callable[[Path], RawData] | None
    has_time: bool
    terms: str
    published: tuple[Counts, ...] = ()
    extras: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    download: Download | None = None
    note: str = ""
    caution: str = ""


_MOVIELENS = "research only, no redistribution (GroupLens)"
_NOT_STATED = "not stated"

_ALL = (
    Dataset(
        "synthetic",
        "Synthetic",
        files=(),
        read=None,
        has_time=True,
        terms="made by this software",
        note="Users with tastes, generated; the default.",
    ),
    Dataset(
        "ml-100k",
        "MovieLens-100K",
        files=("u.data",),
        extras=("u.item",),
        read=read_100k,
        has_time=True,
        terms=_MOVIELENS,
        published=(Counts("FedCA, PLGC", 943, 1682, 100_000),),
        download=Download(
            "https://files.grouplens.org/datasets/movielens/ml-100k.zip",
            {
                "u.data": "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490",
                "u.item": "553841ebc7de3a0fd0d6b62a204ea30c1e651aacfb2814c7a6584ac52f2c5701",
            },
            (943, 1682, 100_000),
        ),
    ),
    Dataset(
        "ml-1m",
        "MovieLens-1M",
        files=("ratings.dat",),
        extras=("movies.dat",),
        read=read_1m,
        has_time=True,
        terms=_MOVIELENS,
        published=(
            Counts("Fed3CR, HeteFedRec, PLGC", 6040, 3706, 1_000_209, 10),
            Counts("FedCA (largest item id)", 6040, 3952, 1_000_209, 10),
        ),
        download=Download("https://files.grouplens.org/datasets/movielens/ml-1m.zip", counts=(6040, 3706, 1_000_209)),
    ),
    Dataset(
        "ml-latest-small",
        "MovieLens-Latest-Small (2018)",
        files=("ratings.csv",),
        extras=("movies.csv",),
        read=read_csv,
        has_time=True,
        terms="may be shared under the conditions of its README (GroupLens)",
        published=(Counts("its README", 610, 9724, 100_836),),
        aliases=("ml-latest-small-2018",),
        download=Download(
            "https://files.grouplens.org/datasets/movielens/ml-latest-small.zip", counts=(610, 9724, 100_836)
        ),
    ),
    Dataset(
        "filmtrust",
        "FilmTrust",
        files=("ratings.dat",),
        read=read_ratings,
        has_time=False,
        terms=_NOT_STATED,
        published=(Counts("FedCA", 1508, 2071, 35_497),),
        note="3 of the 35,497 rows repeat a pair. The order of the rows leaks what is held out by 'last-row'.",
    ),
    Dataset(
        "lastfm-2k",
        "LastFM-2K",
        files=("user_artists.dat",),
        extras=("artists.dat",),
        read=read_lastfm,
        has_time=False,
        terms="non-commercial (HetRec 2011, Last.fm)",
        published=(Counts("Fed3CR, PLGC", 1874, 17_612, 92_780, 10),),
        download=Download(
            "https://files.grouplens.org/datasets/hetrec2011/hetrec2011-lastfm-2k.zip",
            {
                "user_artists.dat": "650cd69d5a68db24b439042557aa539aec47e473273e12cdfdca2cd944b3773a",
                "artists.dat": "c173881362c6b28551368fecb3c0be5a6a30a6cd859e1f5775413dfe46d48648",
            },
            (1892, 17_632, 92_834),
        ),
        note="Artists are numbered as the first users name them, so numbers alone tell what a user has. No method here "
        "reads a number as a quantity.",
    ),
    Dataset(
        "douban-book",
        "Douban-Book",
        files=("ratings.dat",),
        read=read_ratings,
        has_time=False,
        terms=_NOT_STATED,
        published=(
            Counts("Fed3CR, PLGC", 1696, 6777, 95_107, 5),
            Counts("HeteFedRec (another version)", 1833, 7397, 330_268),
        ),
    ),
    Dataset(
        "gowalla",
        "Gowalla",
        files=("train.txt", "test.txt"),
        read=read_lightgcn,
        has_time=False,
        terms=_NOT_STATED,
        published=(Counts("NGCF, LightGCN, GF-CF", 29_858, 40_981, 1_027_370),),
        note="In LightGCN's form, with the random split that papers share: 810,128 interactions for training, 217,242 "
        "for test. split = 'published' takes it; they print Recall@20 and NDCG@20.",
    ),
    Dataset(
        "yelp2018",
        "Yelp 2018",
        files=("train.txt", "test.txt"),
        read=read_lightgcn,
        has_time=False,
        terms=_NOT_STATED,
        published=(Counts("NGCF, LightGCN", 31_668, 38_048, 1_561_406),),
        note="In LightGCN's form, as gowalla.",
    ),
    Dataset(
        "amazon-book",
        "Amazon Book",
        files=("train.txt", "test.txt"),
        read=read_lightgcn,
        has_time=False,
        terms=_NOT_STATED,
        published=(Counts("NGCF, LightGCN", 52_643, 91_599, 2_984_108),),
        note="In LightGCN's form, as gowalla.",
    ),
    Dataset(
        "amazon-video-games",
        "Amazon Video Games",
        files=("Video.txt",),
        read=read_sequences,
        has_time=True,
        terms=_NOT_STATED,
        published=(Counts("CF-FedSR", 31_013, 23_715, 287_107),),
        caution="Order only: the file has no times, and nothing tells whether rows of one day are sorted by item. The "
        "hidden last row has the largest number of the user's items for 57 % of the users, and chance would be 15 %.",
    ),
    Dataset(
        "amazon-beauty-5core",
        "Amazon Beauty, 5-core",
        files=("train.txt", "valid.txt", "test.txt"),
        extras=("imap.json",),
        read=read_five_core,
        has_time=True,
        terms=_NOT_STATED,
        note="Not the version of the CF-FedSR paper. 22,363 users, 12,101 items, 198,502 interactions. Times are whole "
        "days; which event of a day is the last is drawn by key.",
    ),
    Dataset(
        "amazon-beauty",
        "Amazon Beauty",
        files=("ratings_Beauty.csv",),
        read=read_ratings_csv,
        has_time=True,
        terms=_NOT_STATED,
        published=(Counts("CF-FedSR", 52_204, 57_289, 394_908),),
        note="The paper does not state the filter that leads from the original file to its counts.",
    ),
    Dataset(
        "wikipedia",
        "Wikipedia",
        files=("wikipedia.csv",),
        read=read_wikipedia,
        has_time=True,
        terms=_NOT_STATED,
        published=(Counts("CF-FedSR (with repeated edits)", 8227, 1000, 157_474),),
        download=Download("http://snap.stanford.edu/jodie/wikipedia.csv", counts=(8227, 1000, 157_474)),
        note="Only 18,257 of the 157,474 edits are an editor's first of a page: sequence methods keep repeats.",
    ),
    Dataset(
        "qb-article",
        "QB-article",
        files=("QB-article.csv",),
        read=read_qb_article,
        has_time=False,
        terms="research only (Tenrec)",
        published=(Counts("Fed3CR, PLGC", 11_368, 6538, 266_356, 10),),
        note="Clicked articles only.",
    ),
    Dataset(
        "microlens-100k",
        "MicroLens-100K",
        files=("MicroLens-100k_pairs.csv",),
        extras=("MicroLens-100k_titles.csv",),
        read=read_microlens,
        has_time=True,
        terms="research only (MicroLens)",
        published=(Counts("FedCA", 100_000, 19_738, 719_405, 10),),
    ),
    Dataset(
        "anime",
        "Anime",
        files=("rating.csv",),
        extras=("anime.csv",),
        read=read_anime,
        has_time=False,
        terms="CC0 (Kaggle, CooperUnion/anime-recommendations-database)",
        published=(Counts("HeteFedRec (a subset that it does not describe)", 10_482, 6888, 1_265_530),),
    ),
)


FILE = "file"
"""The name under which a file of the user's own is loaded."""


def _wrong(name: str, value: Any) -> str:
    """What is wrong with something that is installed as a data set, or ""."""
    if not isinstance(value, Dataset):
        return f"it is of the type {type(value).__name__}, and no Dataset"
    if value.name != name or name == FILE:
        return f"it calls itself '{value.name}'" if name != FILE else "this is the name of a file of one's own"
    return "" if callable(value.read) else "it has no reader"


DATASETS: Names[Dataset] = Names({dataset.name: dataset for dataset in _ALL}, "bouquet.datasets", _wrong)
"""The values of the setting 'dataset'; those of other packages are entry points of the group "bouquet.datasets"."""


def caution_of(name: str) -> str:
    """What must stand beside every figure of a data set, or ""; also for sets that are not known by name."""
    return DATASETS[name].caution if name in DATASETS else ""


def has_time(name: str, time_column: str) -> bool:
    """Whether the histories of a set that is loaded with these settings are in the order of time."""
    return DATASETS[name].has_time if name in DATASETS else bool(time_column)
