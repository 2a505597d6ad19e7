"""table.tex: what LaTeX prints is what stands in table.md."""

from __future__ import annotations

from bouquet.experiments.latex import comment, latex, tabular


def test_every_sign_that_means_something_to_latex():
    assert latex(r"a\b & 5 % of $x_1$ #2 {y} ~ ^") == (
        r"a\textbackslash{}b \& 5 \% of \$x\_1\$ \#2 \{y\} \textasciitilde{} \textasciicircum{}"
    )
    assert latex("−.003 ± .006, p <.001, λ – |x|") == r"$-$.003 $\pm$ .006, p $<$.001, $\lambda$ -- $|$x$|$"


def test_bold_stays_bold_and_a_lone_star_is_a_star():
    assert latex("FedAvg **LEAKY**") == r"FedAvg \textbf{LEAKY}"
    assert latex("a * b") == "a * b"


def test_a_table_by_hand():
    """Two lines of headings, as the second and third have a candidate set; the first row begins with a bracket."""
    header = ["", "HR@10, full", "best round"]
    lines = [["[a] & b", ".123 ± .004", "5, 6"], ["c_d **LEAKY**", "–", "–"]]
    assert tabular(header, lines) == "\n".join(
        [
            r"\begin{tabular}{@{}lrr@{}}",
            r"\toprule",
            r" & HR@10 & best round \\",
            r" & full &  \\",
            r"\midrule",
            r"{[a] \& b} & .123 $\pm$ .004 & 5, 6 \\",
            r"c\_d \textbf{LEAKY} & -- & -- \\",
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def test_a_table_whose_headings_are_short_has_one_line_of_them():
    assert tabular(["", "n"], [["a", "1"]]).count(r"\\") == 2


def test_comments_hold_whole_texts():
    assert comment("5 % of\n\nusers") == "% 5 % of\n%\n% users"


def test_the_table_of_a_program(small_table):
    """The same rows and figures as in Markdown, and everything that must be said in comments."""
    found = (small_table / "table.tex").read_text()
    markdown = [line for line in (small_table / "table.md").read_text().splitlines() if line.startswith("| ")]
    # Two tables; a header and a rule each.
    assert found.count(r"\begin{tabular}") == 2
    rows = [line for line in found.splitlines() if line.endswith(r"\\") and line.count("$\\pm$")]
    cells = [" & ".join(latex(cell.strip()) for cell in line.strip("| ").split(" | ")) for line in markdown]
    assert rows
    assert all(row.removesuffix(r" \\") in cells for row in rows)
    assert r"FedAvg \textbf{LEAKY} & " in found
    assert "% Rows marked LEAKY draw training negatives" in found
    assert "% Made with: bouquet table table.toml --out out" in found
    outside = [line for line in found.splitlines() if "%" in line and not line.startswith("%")]
    assert all(r"\%" in line for line in outside)
