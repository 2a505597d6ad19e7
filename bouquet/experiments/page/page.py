"""The page as a whole: what was done at the top, then what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bouquet import __version__
from bouquet.experiments.page import markup
from bouquet.experiments.page.content import Content, content_of
from bouquet.experiments.page.markup import text
from bouquet.experiments.page.results import results_section
from bouquet.experiments.page.set_up import examples_section, settings_section
from bouquet.experiments.page.style import style_sheet
from bouquet.experiments.page.training import curves_section, traffic_section
from bouquet.experiments.page.users import users_section
from bouquet.experiments.table_protocol import READ_AT_TEST, rule_of
from bouquet.files import write_atomically
from data_partition import DATASETS, caution_of

_TITLES = {
    "results": "Results",
    "learning": "Learning curves",
    "users": "Users",
    "traffic": "Traffic",
    "examples": "Recommendations",
    "settings": "Settings",
}


def write_page(paths: Sequence[Path], out: Path, labels: Mapping[str, str], examples: int = 3) -> None:
    """Write one file that shows finished runs: no script, no network, nothing beside it.

    The same runs give the same page: it has no date.

    Args:
        paths: folders of runs, or of tables.
        labels: how rows beside a run are called.
        examples: users whose recommendations are shown, where a run kept them.
    Raises:
        ConfigError: the runs are on different data.
        DataError: a run is missing, unfinished or damaged.
        OSError: the file cannot be written; an older one stays.
    """
    content = content_of(paths, labels)
    document = page(content, examples)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, document)


def page(content: Content, examples: int) -> str:
    """The page as text."""
    parts = {
        "results": results_section(content),
        "learning": "",
        "users": users_section(content),
        "traffic": "",
        "examples": examples_section(content, examples),
        "settings": settings_section(content),
    }
    if any(shown.federated for shown in content.methods):
        parts |= {"learning": curves_section(content), "traffic": traffic_section(content)}
    links = [f'<li><a href="#{name}">{title}</a></li>' for name, title in _TITLES.items() if parts[name]]
    title = _title(content)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            # Nothing is loaded, whatever a title or an id in the data says.
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
            'img-src data:">',
            '<link rel="icon" href="data:,">',
            f"<title>{text(title)}</title>",
            f"<style>{style_sheet(len(content.methods))}</style>\n</head>\n<body>",
            '<a class="skip" href="#results">To the results</a>',
            f"<header><h1>{text(title)}</h1>{_protocol(content)}{_leaky(content)}{_caution(content)}</header>",
            f'<nav aria-label="Parts of this page"><ul>{"".join(links)}</ul></nav>',
            f"<main>{''.join(parts.values())}</main>",
            f"<footer>Made by bouquet {text(__version__)} from {_count(content)}. The file stands alone: it loads "
            "nothing and runs nothing.</footer>\n</body>\n</html>\n",
        ]
    )


def _title(content: Content) -> str:
    names = [shown.label for shown in content.methods]
    data = _data_title(content)
    if len(names) == 1:
        return f"{names[0]} on {data}"
    return f"{len(names)} methods on {data}" if len(names) > 3 else f"{', '.join(names[:-1])} and {names[-1]} on {data}"


def _data_title(content: Content) -> str:
    name = str(content.first.settings["dataset"])
    if name == "file" and (file := content.first.settings.get("data-file")):
        return Path(str(file)).name
    return DATASETS[name].title if name in DATASETS else name


def _protocol(content: Content) -> str:
    data, settings = content.first.summary, content.first.settings
    dropped = f" ({data['dropped_users']:,} users with too few are left out)" if data.get("dropped_users") else ""
    return markup.paragraph(
        text(
            f"{data['users']:,} users, {data['items']:,} items, {data['interactions']:,} interactions{dropped}. Split "
            f"{settings['split']}: {rule_of(content.first)} (split seed {settings['split-seed']}). At test, models "
            f"that read a history have read {READ_AT_TEST[str(settings['test-history'])]}. The reported round is the "
            "best on validation (NDCG@10, all items)."
        ),
        "soft",
    )


def _leaky(content: Content) -> str:
    leaky = [shown for shown in content.methods if shown.leaky]
    if not leaky:
        return ""
    ways = {
        "trains with negatives that leave out hidden items (train-negatives = paper), so that the hidden item is the "
        "one that is never trained as a negative": [
            s for s in leaky if s.first.summary.get("train_negatives") == "paper"
        ],
        "hides the last row of each user in a file whose order can tell the future (hold-out = last-row)": [
            s for s in leaky if s.first.settings.get("hold-out") == "last-row"
        ],
    }
    said = [f"{', '.join(f'<b>{text(s.label)}</b>' for s in found)} {words}." for words, found in ways.items() if found]
    return (
        f'<aside class="leaky" aria-label="Leaky runs"><p><strong>LEAKY.</strong> {" ".join(said)} '
        "These figures must not be compared with honest ones.</p></aside>"
    )


def _caution(content: Content) -> str:
    words = caution_of(str(content.first.settings["dataset"]))
    return f'<aside class="caution" aria-label="Caution"><p><b>Caution.</b> {text(words)}</p></aside>' if words else ""


def _count(content: Content) -> str:
    runs = [run for shown in content.methods for run in shown.result.runs]
    names = ", ".join(f"<code>{text('/'.join(Path(run.name).parts[-2:]))}</code>" for run in runs)
    return f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}: {names}"
