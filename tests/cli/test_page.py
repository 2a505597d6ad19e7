"""`bouquet report DIR… --html FILE`: what the page says, and how a reader has it in a browser."""

from __future__ import annotations

import io
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from bouquet.catalogue import Catalogue
from bouquet.experiments.figures import figure
from bouquet.experiments.page.content import content_of
from bouquet.experiments.page.drawing import powers, ticks
from bouquet.experiments.page.users import survival
from bouquet.randomness import user_keys
from bouquet.reporting.reported import NOTHING, Lists
from bouquet.reporting.run_directory import RunDirectory
from tests.browser import browser

HOSTILE = '<script>alert("x")</script>'


@pytest.fixture(scope="module")
def page_file(small_table, tmp_path_factory):
    """A page of the small table, one of whose runs has recommendations."""
    home = tmp_path_factory.mktemp("page")
    shutil.copytree(small_table, home / "out")
    directory = RunDirectory(home / "out" / "cells" / "fedavg" / "seed-0")
    write_recommendations(directory)
    write_page_of(home / "page.html", home / "out")
    return home / "page.html"


def write_page_of(file, *folders):
    from bouquet.cli.compare import page_command

    page_command(list(folders), file, 3)


def write_recommendations(directory):
    """As a run keeps them; one title is an attempt to run something."""
    users, best = ["anna", "bob"], directory.read_summary()["best_round"]
    directory.reported.write_ids(users, Catalogue(("i0", "i1", "i2"), ("First film", HOSTILE, "")))
    keys = user_keys(users)
    items = np.array([[2, 0, NOTHING], [1, 0, 2]], dtype=np.int32)
    directory.reported.write_part(best, 0, 1, Lists(keys, items, np.zeros((2, 3), dtype=np.float32)))
    directory.reported.join(best)


class Reader(HTMLParser):
    """Tags that are open at the end, ids, links, and the texts of table cells by row."""

    VOID = ("meta", "link", "line", "circle", "polygon", "path")

    def __init__(self, document):
        super().__init__()
        self.open, self.ids, self.links, self.rows, self._cell = [], [], [], [], None
        self.feed(document)

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        self.links += [values[name] for name in ("href", "src", "action") if name in values]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = ""

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.rows[-1].append(self._cell)
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data


# -- what it says ------------------------------------------------------------------------------------------------------


def test_the_page_is_whole_and_needs_nothing_else(page_file):
    document = page_file.read_text()
    found = Reader(document)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert all(link[1:] in found.ids for link in found.links if link.startswith("#"))
    assert {link for link in found.links if not link.startswith("#")} == {"data:,"}
    assert "<script" not in document
    assert not re.search(r"https?:|url\(|@import", document)
    assert str(page_file.parent) not in document


def test_figures_are_those_of_the_table(page_file):
    rows = {row[0]: row for row in Reader(page_file.read_text()).rows}
    cells = page_file.parent / "out" / "cells"
    summaries = [RunDirectory(cells / "fedavg" / f"seed-{seed}").read_summary() for seed in (0, 1)]
    a, b = (summary["test"]["full"]["NDCG@10"] for summary in summaries)
    header = next(row for row in Reader(page_file.read_text()).rows if row[0] == "method")
    row = next(row for row in Reader(page_file.read_text()).rows if row[0] == "fedavg")
    assert row[header.index("NDCG@10")].startswith(f"{figure((a + b) / 2)} ± ")
    # Two seeds: s / sqrt 2 is half their distance.
    assert row[header.index("NDCG@10 over seeds")] == f"± {figure(abs(a - b) / 2)}"
    assert rows["popularity"]
    assert "fedavg-paper LEAKY" in rows


def test_leaky_runs_are_told_at_the_top_and_never_called_better(page_file):
    document = page_file.read_text()
    banner = document[document.index('class="leaky"') : document.index("<nav")]
    assert "<strong>LEAKY.</strong> <b>fedavg-paper</b> trains with negatives that leave out hidden items" in banner
    assert "a leak is no merit" in document
    verdict = re.search(r"At the 5 % level[^<]*(<span[^<]*</span>)?[^<]*", document)
    assert verdict is None or "fedavg-paper" not in verdict[0]


def test_an_honest_run_has_no_banner_and_names_what_is_not_at_its_default(small_table, tmp_path):
    write_page_of(tmp_path / "one.html", small_table / "cells" / "fedavg" / "seed-0")
    document = (tmp_path / "one.html").read_text()
    assert '<aside class="leaky"' not in document
    rows = [row[:3] for row in Reader(document).rows]
    assert ["num-server-rounds", "2", "60"] in rows
    assert "Difference to" not in document


def test_what_differs_comes_first_in_settings(page_file):
    document = page_file.read_text()
    settings = document[document.index('<section id="settings"') :]
    first = settings[: settings.index("</table>")]
    assert "<code>train-negatives</code>" in first
    assert "<code>split-seed</code>" not in first
    assert "<code>split-seed</code>" in settings


def test_recommendations_have_titles_and_run_nothing(page_file):
    document = page_file.read_text()
    lists = document[document.index('<section id="examples"') :]
    assert "<h3>User bob</h3><ol><li>&lt;script&gt;" in lists
    assert "<h3>User anna</h3><ol><li>i2</li><li>First film</li></ol>" in lists


def test_the_same_runs_give_the_same_page(page_file, tmp_path):
    write_page_of(tmp_path / "again.html", page_file.parent / "out")
    assert (tmp_path / "again.html").read_text() == page_file.read_text()


def test_groups_by_activity_hold_everybody_once(page_file):
    content = content_of([page_file.parent / "out"], {})
    sizes = RunDirectory(page_file.parent / "out" / "cells" / "fedavg" / "seed-0").read_sizes()
    members = np.concatenate([activity.members for activity in content.activity])
    assert sorted(members) == list(range(len(sizes)))
    assert 2 <= len(content.activity) <= 4
    for before, after in zip(content.activity[:-1], content.activity[1:], strict=True):
        assert before.most < after.least


def test_folders_of_before_sizes_were_kept(small_table, tmp_path):
    shutil.copytree(small_table / "cells" / "fedavg" / "seed-0", tmp_path / "old")
    directory = RunDirectory(tmp_path / "old")
    users, values = directory.read_users()
    directory.write_users(users, values)
    assert directory.read_sizes() is None
    write_page_of(tmp_path / "page.html", tmp_path / "old")
    assert "How active users are is not in these folders" in (tmp_path / "page.html").read_text()


def test_a_centralized_row_alone(small_table, tmp_path):
    write_page_of(tmp_path / "page.html", small_table / "cells" / "popularity" / "seed-0")
    document = (tmp_path / "page.html").read_text()
    assert "Learning curves" not in document
    assert '<section id="results"' in document


def test_errors_are_sentences_and_leave_the_old_page(small_table, tmp_path, bouquet):
    run = small_table / "cells" / "fedavg" / "seed-0"
    file = tmp_path / "page.html"
    file.write_text("old")
    ended = bouquet("report", run, run, "--html", file)
    assert (ended.status, ended.err) == (1, f"{run} is given twice.\n")
    assert bouquet("report", run, tmp_path, "--html", file).status == 1
    assert "takes the name of a file" in bouquet("report", run, "--html", tmp_path).err
    assert "On the screen report shows one run" in bouquet("report", run, run).err
    assert file.read_text() == "old"
    ended = bouquet("report", run, "--html", file)
    assert (ended.status, ended.out) == (0, f"Written: {file}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_share_of_users_by_hand():
    """Values 0, 0.5, 0.5, 1 of four users, one not evaluated: 3/4 have more than 0, 1/4 more than 0.5."""
    points = survival(np.array([0.0, 0.5, np.nan, 1.0, 0.5]))
    assert points == [(0.0, 0.75), (0.5, 0.75), (0.5, 0.25), (1.0, 0.25), (1.0, 0.0)]
    assert survival(np.zeros(3)) == [(0.0, 0.0), (1.0, 0.0)]


def test_marks_of_axes_by_hand():
    assert ticks(0.0, 0.093) == [0.0, 0.02, 0.04, 0.06, 0.08, 0.1]
    assert ticks(0.0, 40.0) == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert ticks(3.0, 3.0)[0] <= 3.0 < ticks(3.0, 3.0)[-1]
    assert powers(3.0, 40.0) == [2, 5, 10, 20, 50]


# -- how a reader has it -----------------------------------------------------------------------------------------------

CLIPPED = """
[...document.querySelectorAll('main *, header *')].filter(e => !e.closest('.scroll') && !e.closest('svg'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))
"""
# Tables that are folded away are none.
STOPS = "[...document.querySelectorAll('a, summary, [tabindex=\"0\"]')].filter(e => e.checkVisibility()).length"
FOCUSED = "(() => { const e = document.activeElement; return e.tagName + ' ' + e.className + ' ' + (e.hash || ''); })()"
CONTRAST = """
(() => {
  const light = c => { const f = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    const [r, g, b] = c.match(/[\\d.]+/g).map(Number); return .2126 * f(r) + .7152 * f(g) + .0722 * f(b); };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const ratio = c => { const [a, b] = [light(c), paper].sort((x, y) => y - x); return (a + .05) / (b + .05); };
  const texts = ['p', 'th', 'td', 'caption', 'figcaption', 'a', 'summary', 'footer'].map(
    n => ratio(getComputedStyle(document.querySelector(n)).color));
  const marks = [...document.querySelectorAll('g.s')].map(e => ratio(getComputedStyle(e).color));
  return [Math.min(...texts), Math.min(...marks)];
})()
"""


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("chromium")) as page:
        yield page


def colours(png):
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    return image.size, len(image.getcolors(2**24))


@pytest.mark.parametrize("dark", [False, True])
def test_it_is_drawn_without_a_word_on_the_console_and_readable(reader, page_file, dark):
    reader.open(page_file, dark=dark)
    size, count = colours(reader.screenshot())
    assert size[0] == 1200
    assert size[1] > 2000
    assert count > 100
    assert reader.said == []
    assert set(reader.requests) <= {page_file.absolute().as_uri(), "data:,"}
    text, marks = reader.evaluate(CONTRAST)
    assert text >= 4.5
    assert marks >= 3
    corner = reader.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", corner))) < 200) is dark


def test_a_phone_scrolls_down_and_not_aside(reader, page_file):
    reader.open(page_file, width=390, height=844)
    assert reader.evaluate("document.documentElement.scrollWidth") == 390
    assert reader.evaluate(CLIPPED) == []
    least = "Math.min(...[...document.querySelectorAll('figure svg text')].map(e => e.getBoundingClientRect().height))"
    assert reader.evaluate(least) >= 10


def test_every_link_table_key_and_list_is_reached_by_keyboard(reader, page_file):
    """Tab from the top: the first stop is the way to the results, and every stop is seen."""
    reader.open(page_file)
    wanted = reader.evaluate(STOPS)
    stops, shown = [], []
    for _ in range(wanted):
        reader.press("Tab", 9)
        stops.append(reader.evaluate(FOCUSED))
        shown.append(reader.evaluate("getComputedStyle(document.activeElement).outlineStyle"))
    assert stops[0] == "A skip #results"
    assert len([stop for stop in stops if stop.startswith("BODY")]) == 0
    assert sum(stop.startswith("SUMMARY") for stop in stops) >= 3
    assert set(shown) == {"solid"}


def test_a_method_in_the_key_makes_the_others_step_back(reader, page_file):
    reader.open(page_file)
    reader.evaluate("document.querySelector('#learning .key li').focus({focusVisible: true})")
    opacity = "getComputedStyle(document.querySelector('#learning g.s{}')).opacity"
    first, other = (
        reader.evaluate(f"document.querySelectorAll('#learning .key li')[{n}].className.slice(1)") for n in (0, 1)
    )
    assert float(reader.evaluate(opacity.format(first))) == 1
    assert float(reader.evaluate(opacity.format(other))) < 0.5


def test_it_is_printed_on_light_paper(reader, page_file):
    reader.open(page_file, dark=True, media="print")
    assert reader.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert reader.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink')").strip() == "#1d1f23"
    assert Path(page_file).exists()
    assert reader.pdf().startswith(b"%PDF")
