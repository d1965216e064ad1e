"""Write a folder that can be pushed as a Hugging Face Space: `python -m scripts.make_space cpu|gpu|zero [FOLDER]`.

A cpu Space predicts and interprets, a gpu Space times kernels on its GPU, and a zero Space on the GPU that ZeroGPU
assigns to each run. Versions are those of requirements.txt, except for ZeroGPU, which supports Python 3.12.12 and torch
2.11 with Triton 3.6 (its documentation of 2026-08-22). The hub installs `spaces` and Gradio (`sdk_version`) itself.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Files and folders to copy.
PRODUCT = ("app.py", "kernels", "tilescope", "visualize", "docs/glossary.md", "LICENSE")

# Marks a folder that this script wrote and may replace.
MARK = ".tilescope-space"

_CPU_WHEELS = "--extra-index-url https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True)
class Profile:
    """A kind of Space.

    Attributes:
        description: a paragraph of its README.
        hardware: the hub's name of the suggested hardware; "" if it has none.
        python: version.
        pinned: requirements that replace those of requirements.txt, by package.
        options: lines before the requirements.
    """

    description: str
    hardware: str
    python: str = "3.12"
    pinned: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()


PROFILES = {
    "cpu": Profile(
        "No GPU: Triton's interpreter checks results, and the compiler and the models predict. Times and counts were "
        "recorded.",
        "cpu-basic",
        pinned={"torch": "torch==2.13.0+cpu"},
        options=(_CPU_WHEELS,),
    ),
    "gpu": Profile("Kernels run on this Space's GPU, which also measures the times.", "l4x1"),
    "zero": Profile(
        "ZeroGPU assigns a slice of a GPU to each run. Other visitors use the rest, so a whole GPU would be faster. "
        "Sweeps are predicted, not timed.",
        "",
        python="3.12.12",
        pinned={"torch": "torch==2.11.0", "triton": "triton==3.6.0"},
    ),
}


def requirements(profile: Profile, text: str) -> str:
    """Return the Space's requirements: the project's, without Gradio.

    Raises:
        ValueError: the profile pins a package that the project does not require.
    """
    lines, left = list(profile.options), dict(profile.pinned)
    for line in text.splitlines():
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        if name and name != "gradio":
            lines.append(left.pop(name, line))
    if left:
        raise ValueError(f"requirements.txt does not require {', '.join(left)}.")
    return "\n".join(lines) + "\n"


def gradio_version(readme: str) -> str:
    """Return the Gradio version of the project's README."""
    match = re.search(r"^sdk_version: (\S+)$", readme, re.MULTILINE)
    if match is None:
        raise ValueError("README.md has no sdk_version.")
    return match.group(1)


def readme(name: str, profile: Profile, gradio: str) -> str:
    """Return the Space's README, whose front matter the hub reads."""
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
    hardware = " Choose ZeroGPU as its hardware." if name == "zero" else ""
    return (
        "---\n"
        + "\n".join(lines)
        + "\n---\n\n# Tilescope\n\nSee what a Triton kernel really does: which blocks each "
        "program loads, which bytes each warp fetches, and what reaches DRAM.\n\n"
        + profile.description
        + hardware
        + "\n"
    )


def make(name: str, folder: Path) -> None:
    """Write the Space of a profile.

    Raises:
        FileExistsError: the folder has other contents, which stay unchanged.
    """
    if not (folder / MARK).is_file() and (folder.is_file() or any(folder.glob("*"))):
        raise FileExistsError(
            f"{folder} exists and is not a Space that this script wrote; name another folder."
        )
    profile = PROFILES[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text(f"{name}\n", encoding="utf-8")
    for part in PRODUCT:
        source, target = ROOT / part, folder / part
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)  # otherwise deleted files would stay
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)
    gradio = gradio_version((ROOT / "README.md").read_text(encoding="utf-8"))
    (folder / "README.md").write_text(readme(name, profile, gradio), encoding="utf-8")
    required = requirements(profile, (ROOT / "requirements.txt").read_text(encoding="utf-8"))
    (folder / "requirements.txt").write_text(required, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("profile", choices=PROFILES)
    parser.add_argument("folder", nargs="?", type=Path, help="default: space-PROFILE")
    flags = parser.parse_args(arguments)
    folder = flags.folder or Path(f"space-{flags.profile}")
    try:
        make(flags.profile, folder)
    except FileExistsError as error:
        parser.exit(2, f"{error}\n")
    print(f"{folder} is ready to push: `hf upload --repo-type space NAME {folder} .`")


if __name__ == "__main__":
    main()
