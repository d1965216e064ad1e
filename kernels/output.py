"""Files that replace earlier ones as a whole, and what must not outlive the process that made it."""

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# The environment variable that marks a guard's processes: its folder.
FOLDER = "TILESCOPE_FOLDER"

# Stdin also ends if the other process is killed. Processes are killed until none is left, because one may start another
# at any time.
_GUARD = """
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


@contextmanager
def guard(*outputs: Path) -> Iterator[Path]:
    """Yield a new folder. When this process ends, however it ends, a guard process removes what it leaves.

    These are the folder, all processes whose environment has it as FOLDER, and the partial files of the outputs. The
    guard has its own session, so that no signal to this process's group ends it.
    """
    folder = tempfile.mkdtemp(prefix="tilescope-")
    command = ["sh", "-c", _GUARD, folder, *(str(partial_path(path)) for path in outputs)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": os.environ.get("PATH", os.defpath)},
        start_new_session=True,
    ):
        yield Path(folder)


def partial_path(path: Path) -> Path:
    """Return the file beside an output where this process writes it."""
    path = path.resolve()
    return path.with_name(f".{path.name[:50]}.{os.getpid()}")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a partial file, which replaces a file if the block ends without an exception."""
    partial = partial_path(path)
    try:
        yield partial
        if path.exists():
            shutil.copymode(path, partial)
        partial.replace(path.resolve())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        partial.unlink(missing_ok=True)


def check_output(path: Path, is_own: Callable[[Path], bool]) -> None:
    """Check that a file can be written, and that Tilescope wrote what it replaces.

    Args:
        is_own: whether Tilescope wrote a file.

    Raises:
        OSError: the path cannot be written, or is someone else's file.
    """
    path = path.resolve()
    is_new = not path.exists()
    path.open("ab").close()
    if is_new:
        path.unlink()
    elif path.stat().st_size and not is_own(path):
        raise FileExistsError(errno.EEXIST, "Tilescope did not write the existing file", str(path))
    partial_path(path).touch()
    partial_path(path).unlink()
