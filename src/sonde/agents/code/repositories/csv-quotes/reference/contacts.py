"""Import of contacts from comma-separated text."""

import csv
import io


def read_contacts(text):
    """One dict per line, with the names in the first line as keys."""
    names, *rows = csv.reader(io.StringIO(text.strip(), newline=""))
    return [dict(zip(names, row)) for row in rows]
