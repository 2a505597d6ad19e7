"""A results table for a paper: the tabular of `table.tex`, to be taken in with `\\input`; it needs booktabs."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SIGNS = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    # What OT1 fonts print as other signs.
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    # What our figures and titles are written with, so that any LaTeX reads them.
    "±": r"$\pm$",
    "−": r"$-$",
    "λ": r"$\lambda$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
}
_BOLD = re.compile(r"\*\*(.+?)\*\*")


def latex(words: str) -> str:
    """A text that LaTeX prints as it is; **bold** stays bold."""
    escaped = "".join(_SIGNS.get(sign, sign) for sign in words)
    return _BOLD.sub(r"\\textbf{\1}", escaped)


def comment(words: str) -> str:
    """Lines that LaTeX does not read."""
    return "\n".join(f"% {line}".rstrip() for line in words.splitlines())


def tabular(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table between rules of booktabs: the first column is text, the others stand at the right.

    Args:
        header: a cell "metric, candidate set" stands in two lines.
    """
    columns = "l" + "r" * (len(header) - 1)
    tops, belows = zip(*(cell.partition(", ")[::2] for cell in header), strict=True)
    rows = [tops, belows] if any(belows) else [tops]
    text = [rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}", r"\toprule"]
    text += [_row(row) for row in rows]
    text.append(r"\midrule")
    text += [_row(line) for line in lines]
    return "\n".join([*text, r"\bottomrule", r"\end{tabular}"])


def _row(cells: Sequence[str]) -> str:
    # A row that begins with [ would be read as the option of the \\ before it.
    first = latex(cells[0])
    shown = ["{" + first + "}" if first.startswith("[") else first, *map(latex, cells[1:])]
    return " & ".join(shown) + r" \\"
