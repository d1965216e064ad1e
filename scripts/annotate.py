"""Print GitHub annotations for a report: `python scripts/annotate.py report.json`, in the repository that it is about.

The report is the output of `tilescope show --json`. Its regressions (of `--against`) come first, then its findings.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any


def annotate(report: dict[str, Any], files: list[str]) -> Iterator[str]:
    """Yield a workflow command for each regression and each finding.

    Args:
        files: of the repository. A report has names without folders, and the paths at which kernels were captured.
    """
    captured = {launch["source"]: launch["source_path"] for launch in report["launches"]}
    warnings = [
        (each["file"], each["line"], each["sentence"])
        for each in report.get("differences", ())
        if each["is_worse"]
    ]
    warnings += [
        (
            each["file"],
            each["line"],
            " ".join(filter(None, (each["text"], each["change"], each["needs"]))),
        )
        for launch in report["launches"]
        for each in launch["findings"]
    ]
    for name, line, text in dict.fromkeys(warnings):
        path = find_file(captured.get(name, name), files)
        place = f" file={escape(path).replace(':', '%3A').replace(',', '%2C')},line={line}"
        yield f"::warning{place if path else ''}::{escape(text)}"


def find_file(captured: str, files: list[str]) -> str:
    """Return the file whose path ends most like a captured one; "" if none or several do.

    >>> find_file("/lib/a/softmax.py", ["src/a/softmax.py", "src/b/softmax.py"])
    'src/a/softmax.py'
    """
    parts = PurePosixPath(captured).parts[::-1]
    common = {}
    for file in files:
        own = PurePosixPath(file).parts[::-1]
        differ = [mine != other for mine, other in zip(own, parts, strict=False)]
        common[file] = differ.index(True) if True in differ else len(differ)
    most = max(common.values(), default=0)
    closest = [file for file, number in common.items() if number == most]
    return closest[0] if most and len(closest) == 1 else ""


def escape(text: str) -> str:
    """Escape the data of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


if __name__ == "__main__":
    listed = subprocess.run(
        ["git", "ls-files", "-z"], capture_output=True, text=True, check=True, errors="replace"
    )
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for command in annotate(report, listed.stdout.split("\0")[:-1]):
        print(command)
