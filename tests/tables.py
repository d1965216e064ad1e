"""Tables of parameters, written as text."""

from ast import literal_eval
from contextlib import suppress


def read_table(table):
    """Return each line's cells, separated by "|": Python literals or, otherwise, texts."""
    return [tuple(map(_read, line.split("|"))) for line in table.strip("\n").splitlines()]


def _read(cell):
    with suppress(ValueError, SyntaxError):
        return literal_eval(cell.strip())
    return cell.strip()
