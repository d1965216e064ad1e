"""The package's description: the README without the Space's header and without links and pictures of this repository.

Hatchling calls this when it builds the package, because a file outside the repository can't follow relative links.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class PackageReadme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": package_readme(readme)}


def package_readme(readme: str) -> str:
    """Return a README without front matter, comments, relative pictures and the targets of relative links."""
    readme = re.sub(r"\A---\n.*?\n---\n+", "", readme, flags=re.DOTALL)
    readme = re.sub(r"<!--.*?-->\n", "", readme, flags=re.DOTALL)
    readme = re.sub(r"!\[[^]]*\]\((?!https?:)[^)]*\)\n+", "", readme)
    return re.sub(r"\[([^]]*)\]\((?!https?:)[^)]*\)", r"\1", readme)
