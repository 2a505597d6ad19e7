"""Pieces of HTML. Whatever comes from a file or a name goes through `text`; everything else here is ours."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

LEAKY = ' <span class="tag">LEAKY</span>'


def text(value: object) -> str:
    """A value as HTML text, in attributes too."""
    return escape(str(value), quote=True)


def table(
    caption: str, header: Sequence[str], lines: Sequence[Sequence[str]], *, left: int = 1, wide: Sequence[int] = ()
) -> str:
    """A table in a box of its own that scrolls where the page is narrow, by keyboard too.

    Args:
        caption, header, lines: HTML.
        left: so many first columns are text, the others figures.
        wide: columns of prose, whose lines may break.
    """

    def side(place: int) -> str:
        return ' class="left"' if place < left or place in wide else ""

    head = "".join(f'<th scope="col"{side(place)}>{cell}</th>' for place, cell in enumerate(header))
    body = []
    for line in lines:
        first, *others = line
        cells = [f'<th scope="row">{first}</th>']
        for place, cell in enumerate(others, start=1):
            kind = ' class="left wide"' if place in wide else side(place)
            cells.append(f"<td{kind}>{cell}</td>")
        body.append(f'<tr class="rule">{"".join(cells)}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>'
        f"<caption><span>{caption}</span></caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def figure(title: str, note: str, drawing: str, behind: str = "") -> str:
    """A drawing with what it shows above it, and its figures as a table that can be opened below.

    Args:
        title, note: HTML.
        behind: a table.
    """
    more = f"<details><summary>The figures behind it</summary>{behind}</details>" if behind else ""
    return f"<figure><figcaption><b>{title}</b> {note}</figcaption>{drawing}{more}</figure>"


def figures(key: str, drawings: Sequence[str]) -> str:
    """Drawings side by side that share a key."""
    return f'<div class="group">{key}<div class="figures">{"".join(drawings)}</div></div>'


def section(name: str, title: str, *content: str) -> str:
    """A part of the page that can be linked to."""
    heading = f'<h2 id="{name}-title">{title}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{heading}{"".join(content)}</section>'


def paragraph(words: str, kind: str = "") -> str:
    """A paragraph of HTML."""
    return f'<p class="{kind}">{words}</p>' if kind else f"<p>{words}</p>"
