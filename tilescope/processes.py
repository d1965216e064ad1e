"""Processes of this application: their packages, their temporary files, and the files that they write."""

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HERE = Path(__file__).resolve().parent

# The folder that holds the packages `kernels` and `visualize`: a subfolder of this package in a wheel, and its parent
# folder in a checkout. Only Tilescope's own processes have it on their path: users may have packages with these names.
FOLDER = next(
    folder for folder in (_HERE / "page", _HERE.parent) if (folder / "visualize").is_dir()
)

# The environment variable that marks the processes that a guard kills. Its value is the guard's folder.
GUARDED = "TILESCOPE_FOLDER"

# The guard's stdin also ends if the guarded process is killed. The guard kills processes until none is left, because
# each may start another at any time.
_GUARD = """
exec > /dev/null 2>&1
cat
while marked=$(grep -lsF "$0" /proc/[0-9]*/environ); [ "$marked" ]; do
    for file in $marked; do
        process=${file#/proc/}
        kill -9 "${process%/environ}"
    done
    sleep 0.1
done
rm -rf "$0" "$@"
"""


def environment(*folders: Path) -> dict[str, str]:
    """Return this process's environment, with `folders` and this package's parent at the front of PYTHONPATH."""
    paths = [*map(str, folders), str(_HERE.parent), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@contextmanager
def guard(*outputs: Path) -> Iterator[Path]:
    """Yield a new folder. However this process ends, a guard process then cleans up.

    The guard removes the folder and the outputs' partial files, and kills all processes whose environment names the
    folder as GUARDED. It has its own session, so no signal to this process's group ends it.
    """
    folder = tempfile.mkdtemp(prefix="tilescope-")
    command = ["sh", "-c", _GUARD, folder, *(str(partial_path(path)) for path in outputs)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        start_new_session=True,
    ):
        yield Path(folder)


def partial_path(path: Path) -> Path:
    """Return the path of the partial file that this process writes, next to the output."""
    path = path.resolve()
    return path.with_name(f".{path.name[:50]}.{os.getpid()}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a partial file, which replaces a file if the block ends without an exception."""
    partial = partial_path(path)
    try:
        yield partial
        partial.replace(path.resolve())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def check_output(path: Path, marker: bytes) -> None:
    """Check that a file can be written, and that it would not replace a file that Tilescope did not write.

    Args:
        marker: in the first kB of every file that Tilescope writes.

    Raises:
        OSError: the path cannot be written, or holds another file.
    """
    path = path.resolve()
    is_new = not path.exists()
    with path.open("a+b") as file:
        file.seek(0)
        start = file.read(1000)
    if is_new:
        path.unlink()
    elif start and marker not in start:
        raise FileExistsError(errno.EEXIST, "Tilescope did not write the existing file", str(path))
