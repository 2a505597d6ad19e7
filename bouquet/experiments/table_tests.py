"""The tests of a table: which row against which, and how they are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bouquet.evaluation import PairedDifference
from bouquet.experiments.comparison import differences_of
from bouquet.experiments.figures import figure, probability
from bouquet.experiments.table_file import TableFile
from bouquet.experiments.table_results import Column, RowResult

TestTable = tuple[str, list[str], list[list[str]]]
"""what it is, header and rows"""


@dataclass(frozen=True)
class Tested:
    """A row against another one.

    Attributes:
        reference: name of the other row.
        p_adjusted: for all tests of the table.
    """

    row: str
    reference: str
    difference: PairedDifference
    p_adjusted: float


Tests = dict[Column, list[Tested]]


def row_tests(table: TableFile, results: Sequence[RowResult], columns: Sequence[Column]) -> Tests:
    """Each row against the row `against`, then each row against its own base; without pairs nothing."""
    by_name = {result.row.name: result for result in results}
    pairs = [(row.name, table.against) for row in table.rows if row.name != table.against]
    pairs += [(row.name, row.own_base) for row in table.rows]
    pairs = [pair for pair in dict.fromkeys(pairs) if by_name.keys() >= set(pair)]
    samples = {column: {name: result.sample(column) for name, result in by_name.items()} for column in columns}
    asked = [(column, *pair) for column in columns for pair in pairs]
    found = differences_of([(samples[column][row], samples[column][reference]) for column, row, reference in asked])
    tests: Tests = {}
    for (column, row, reference), (difference, adjusted) in zip(asked, found, strict=True):
        tests.setdefault(column, []).append(Tested(row, reference, difference, adjusted))
    return tests


def test_tables(table: TableFile, results: Sequence[RowResult], tests: Tests) -> list[TestTable]:
    """One of the row `against`, and one of rows and their own bases."""
    titles = {result.row.name: result.title for result in results}
    pairs = [(test.row, test.reference) for test in next(iter(tests.values()))]
    common = [pair for pair in pairs if pair[1] == table.against]
    own = [pair for pair in pairs if pair[1] != table.against]
    found = []
    for wanted, words in ((common, f"Difference to {titles.get(table.against)}"), (own, "Difference to the own base")):
        if not wanted:
            continue
        header = [""] if wanted is common else ["", "base"]
        header += [f"{metric}, {candidates}" for candidates, metric in tests]
        lines = []
        for row, reference in wanted:
            line = [titles[row]] if wanted is common else [titles[row], titles[reference]]
            for column in tests.values():
                test = next(test for test in column if (test.row, test.reference) == (row, reference))
                line.append(_tested(test, table.digits))
            lines.append(line)
        found.append((f"{words}, with its 95 % interval.", header, lines))
    return found


def _tested(test: Tested, digits: int) -> str:
    """The size of an effect first, then how sure it is."""
    low, high = (figure(value, digits) for value in test.difference.interval)
    mark = "" if test.difference.counts_seeds else " †"
    return f"{figure(test.difference.mean, digits)} [{low}, {high}], p {probability(test.p_adjusted)}{mark}"


def how_tested(tests: Tests) -> str:
    """What the tests are, below them."""
    everything = [test for column in tests.values() for test in column]
    words = [f"p is adjusted for all {len(everything)} tests of this table (Holm)."]
    if any(test.difference.counts_seeds for test in everything):
        words.append(
            "Tests and intervals are over users and seeds, crossed: they count what another draw of users and what "
            "another seed would change (Student's t, Satterthwaite's degrees of freedom; p is at least that of a "
            "sign-flip test over users). Rows that no seed changes have one run."
        )
    if not all(test.difference.counts_seeds for test in everything):
        words.append(
            "† Users only (sign-flip test): of one of the two rows there is one seed. It speaks of these trained "
            "models, and not of what the method would reach when it is trained again."
        )
    return " ".join(words)
