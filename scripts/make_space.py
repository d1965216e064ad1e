"""Write a folder that can be pushed as a Hugging Face Space: `python -m scripts.make_space cpu|gpu|zero [FOLDER]`.

cpu predicts and interprets, gpu times on a GPU of its own, zero on one that ZeroGPU lends for each run. Versions are
those of requirements.txt, but for what ZeroGPU supports: Python 3.12.12 and torch 2.11 (with it Triton 3.6), as its
documentation of 2026-08-22 lists them. The hub installs `spaces` there itself, and Gradio by `sdk_version`.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What the page is made of. Tests, benchmarks and scripts stay behind.
PRODUCT = ("app.py", "kernels", "visualize", "docs/glossary.md", "LICENSE")

# A file that says that a folder was written by this script: what is in it may be replaced.
MARK = ".tilescope-space"

_CPU_WHEELS = "--extra-index-url https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True)
class Profile:
    """A kind of Space.

    Attributes:
        says: what it can do, for its README.
        hardware: that the hub suggests; "" where it has no name for it.
        python: version.
        instead: versions in place of those of requirements.txt, by package.
        before: lines before the requirements.
    """

    says: str
    hardware: str
    python: str = "3.12"
    instead: Mapping[str, str] = field(default_factory=dict)
    before: Sequence[str] = ()


PROFILES = {
    "cpu": Profile(
        "No GPU: Triton's interpreter checks results, and the compiler and the models predict. Times and counts are "
        "recorded ones.",
        "cpu-basic",
        instead={"torch": "torch==2.13.0+cpu"},
        before=(_CPU_WHEELS,),
    ),
    "gpu": Profile("Kernels run on this Space's own GPU: times are measured here.", "l4x1"),
    "zero": Profile(
        "Each run is lent a slice of a GPU by ZeroGPU. Others use the rest of it: its times are no measure of a whole "
        "one. A sweep is predicted, and not timed.",
        "",
        python="3.12.12",
        instead={"torch": "torch==2.11.0", "triton": "triton==3.6.0"},
    ),
}


def requirements(profile: Profile, text: str) -> str:
    """The Space's requirements, of the project's: without Gradio, which the hub installs.

    Raises:
        ValueError: where the profile replaces what the project does not require.
    """
    lines, left = list(profile.before), dict(profile.instead)
    for line in text.splitlines():
        name = re.match(r"[\w.-]*", line).group()  # type: ignore[union-attr]  # it matches anything
        if name and name != "gradio":
            lines.append(left.pop(name, line))
    if left:
        raise ValueError(f"requirements.txt has no {' and no '.join(left)}.")
    return "\n".join(lines) + "\n"


def gradio_version(front_matter: str) -> str:
    """The version of Gradio that the project's README names for the hub."""
    found = re.search(r"^sdk_version: (\S+)$", front_matter, re.MULTILINE)
    if found is None:
        raise ValueError("README.md has no sdk_version.")
    return found.group(1)


def readme(name: str, profile: Profile, gradio: str) -> str:
    """The card of the Space, which the hub reads."""
    matter = {
        "title": "Tilescope",
        "emoji": "🔬",
        "colorFrom": "indigo",
        "colorTo": "yellow",
        "sdk": "gradio",
        "sdk_version": gradio,
        "python_version": f'"{profile.python}"',
        "app_file": "app.py",
        "suggested_hardware": profile.hardware,
        "license": "mit",
        "short_description": "What does my Triton kernel really do?",
    }
    lines = [f"{key}: {value}" for key, value in matter.items() if value]
    how = {"zero": " Choose ZeroGPU as its hardware."}.get(name, "")
    return (
        "---\n" + "\n".join(lines) + "\n---\n\n# Tilescope\n\nSee what a Triton kernel really does: which blocks each "
        "program loads, which bytes each warp fetches, and what reaches DRAM.\n\n" + profile.says + how + "\n"
    )


def make(name: str, folder: Path) -> None:
    """Write the Space of a profile.

    Raises:
        FileExistsError: where the folder holds something else than a Space of ours, which stays as it is.
    """
    if folder.exists() and not (folder / MARK).is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists, and holds no Space of ours: name another folder.")
    profile = PROFILES[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text(f"{name}\n", encoding="utf-8")
    for part in PRODUCT:
        source, target = ROOT / part, folder / part
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)  # or what is no more here would stay there
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)
    gradio = gradio_version((ROOT / "README.md").read_text(encoding="utf-8"))
    (folder / "README.md").write_text(readme(name, profile, gradio), encoding="utf-8")
    required = requirements(profile, (ROOT / "requirements.txt").read_text(encoding="utf-8"))
    (folder / "requirements.txt").write_text(required, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", choices=PROFILES)
    parser.add_argument("folder", nargs="?", type=Path, help="where to (space-PROFILE)")
    flags = parser.parse_args(arguments)
    folder = flags.folder or Path(f"space-{flags.profile}")
    try:
        make(flags.profile, folder)
    except FileExistsError as error:
        parser.exit(2, f"{error}\n")
    print(f"{folder} is ready to push: `hf upload --repo-type space NAME {folder} .`")


if __name__ == "__main__":
    main()
