"""Install the wheel as a user would, and run its commands: `python -m scripts.try_wheel`.

At first, the virtual environment has only torch and Triton with their requirements. These packages, and
later the page's, are linked from this Python's.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from scripts.make_space import ROOT
from scripts.requirements import requirements
from tests.waiting import free_port, serving

EXAMPLES = ROOT / "kernels" / "examples"


def link(names: list[str], folder: Path) -> None:
    """Link installed distributions and their requirements into a folder."""
    linked = set[str]()
    while names:
        name = names.pop()
        if name in linked:
            continue
        linked.add(name)
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(found.locate_file(top))
        names += package_names(found.requires or ())


def package_names(texts: Iterable[str]) -> list[str]:
    """Return the packages that requirements name, without extras and those of other systems."""
    needs = map(Requirement, texts)
    return [need.name for need in needs if not need.marker or need.marker.evaluate({"extra": ""})]


def main() -> None:
    (wheel,) = (ROOT / "dist").glob("*.whl")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
        (site,) = home.glob("venv/lib/python*/site-packages")
        link(["torch", "triton"], site)

        def run(*command: str) -> str:
            began = time.monotonic()
            path = home / "venv" / "bin" / command[0]
            done = subprocess.run(
                [path, *command[1:]], cwd=home, check=True, stdout=subprocess.PIPE, text=True
            )
            print(f"{time.monotonic() - began:5.1f} s  {' '.join(command)}", flush=True)
            return done.stdout

        def size_mb() -> float:
            files = (path.lstat() for path in site.rglob("*"))
            return sum(file.st_size for file in files) / 1e6

        before = size_mb()
        run("pip", "install", "--quiet", str(wheel))
        print(f"{size_mb() - before:.0f} MB")
        for name in ("vector_add.py", "softmax.py"):
            (home / name).write_bytes((EXAMPLES / name).read_bytes())
        print(run("tilescope", "show", "vector_add.py", "--text"))
        assert '"kernel": "softmax"' in run("tilescope", "show", "softmax.py", "--json")
        link(package_names(requirements(["page"])), site)
        print(run("tilescope", "doctor"))
        port = str(free_port())
        command = [str(home / "venv/bin/tilescope"), "serve", "--port", port]
        with serving(command, f"http://127.0.0.1:{port}/", home / "log", cwd=home) as (_, page):
            assert b"Tilescope" in page


if __name__ == "__main__":
    main()
