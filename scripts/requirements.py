"""Print requirements of pyproject.toml: `python -m scripts.requirements GROUP ...`.

A group is an extra, a dependency group, or `base`: what the wheel always requires. requirements.txt has the groups
`pinned base page`, because a Hugging Face Space and a container's first layers see only that file.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "pyproject.toml"


def requirements(groups: Iterable[str]) -> Iterator[str]:
    """Yield the requirements of groups. A group may include an extra: `tilescope[page]`."""
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    project = content["project"]
    extras = project["optional-dependencies"] | content["dependency-groups"]
    lists = {"base": project["dependencies"], **extras}
    for group in groups:
        for requirement in lists[group]:
            included = re.fullmatch(r"tilescope\[(\w+)\]", requirement)
            yield from requirements([included[1]]) if included else [requirement]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
