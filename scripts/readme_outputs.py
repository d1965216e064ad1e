"""Run the README's first example, and replace the outputs in the README: `python -m scripts.readme_outputs [--check]`.

The block after a comment such as `<!-- tilescope show double.py --text -->` holds that command's output, with lines
wrapped to the width of a page. With --check, the README stays unchanged, and the exit status is 1 if an output or a
version differs.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import textwrap
from importlib.metadata import version
from pathlib import Path

from scripts.make_space import ROOT

README = ROOT / "README.md"
WIDTH = 118

EXAMPLE = re.compile(r"^cat > (\S+) <<'EOF'\n(.*?)^EOF$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"(<!-- tilescope (show .*?) -->\n```\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
VERSIONS = re.compile(r"(?<=machine with torch )\S+ and Triton \S+(?=, it prints)")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    flags = parser.parse_args(arguments)
    before = README.read_text(encoding="utf-8")
    example = EXAMPLE.search(before)
    if example is None:
        sys.exit("README.md has no example that begins with `cat >`.")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / example[1]).write_text(example[2], encoding="utf-8")
        after = OUTPUT.sub(lambda found: found[1] + excerpt(found[2].split(), folder), before)
    torch = version("torch").partition("+")[0]
    after = VERSIONS.sub(f"{torch} and Triton {version('triton')}", after)
    if flags.check and after != before:
        sys.exit("Outputs in README.md differ: python -m scripts.readme_outputs")
    README.write_text(after, encoding="utf-8")


def excerpt(command: list[str], folder: str) -> str:
    """Return the part of a command's output that the README shows."""
    run = [sys.executable, ROOT / "app.py", *command]
    text = subprocess.run(run, cwd=folder, check=True, capture_output=True, text=True).stdout
    wrapped = (textwrap.fill(line, WIDTH, subsequent_indent="   ") for line in text.splitlines())
    return "\n".join(wrapped).rstrip() + "\n"


if __name__ == "__main__":
    main()
