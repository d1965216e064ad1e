"""Approved texts of the views."""

import re
from pathlib import Path

import pytest

from tests.messages import text_of


@pytest.fixture
def approve(request):
    """Return a function that compares texts by name with those in a file. `--approve` writes the file."""

    def compare(file, texts):
        path = Path(__file__).with_name("approved") / f"{file}.txt"
        shown = ""
        for name, text in texts.items():
            lines = re.sub(r"\. (?=[A-Z])", ".\n", text_of(text))
            shown += f"# {name}\n{lines}\n\n"
        if request.config.option.approve:
            path.write_text(shown, encoding="utf-8")
        assert shown == path.read_text(encoding="utf-8"), "rerun with --approve, and read the diff"

    return compare
