"""Write a capture from the files of a recorder."""

import errno
import itertools
import json
import os
import re
import signal
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.pool import ThreadPool
from pathlib import Path

import triton

from . import Values
from .arguments import own_tensor
from .compiled import read_kernel
from .recorder import MOST_BYTES, TOO_LARGE
from .tracebacks import NO_PLACE, describe_exit

_FORMAT = 1


def check_output(path: Path) -> None:
    """Raise OSError if a file cannot be written, or exists and is not a capture."""
    path = path.resolve()
    is_new = not path.exists()
    with path.open("a+b") as file:
        is_empty = not file.tell()
        is_zip = zipfile.is_zipfile(file)
        is_capture = is_zip and "capture.json" in zipfile.ZipFile(file).namelist()
    if is_new:
        path.unlink()
    elif not is_empty and not is_capture:
        raise FileExistsError(errno.EEXIST, "Tilescope did not write the existing file", str(path))


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a path in the same folder, which replaces a file once it is whole."""
    path = path.resolve()
    # `captures/server.py`, the parent, knows this name
    partial = path.with_name(f".{path.name[:50]}.{os.getppid()}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_capture(folder: Path, path: Path, script: str = "", status: int = 0) -> str:
    """Write a capture from the files of a recorder. Return "", or why nothing was captured.

    Args:
        status: the exit status of the recorder's process, or minus the signal that killed it.
    """
    content = _read_journal(folder, script)
    if content["refused"]:
        return content["refused"]
    if status and "is_complete" not in content:
        launches = content["launches"]
        before = f"; launches before that: {len(launches)}"
        end = describe_exit(script, status, before)
        if status < 0:
            killed = f"{script} was killed by {signal.Signals(-status).name}{before}"
            end = {"kind": "exception", "message": killed}
        place = launches[-1]["caller"] if launches else NO_PLACE
        content["stopped"] = {**place, **end}
    with _replacing(path) as partial, zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as file:
        _write_arrays(folder, content["arrays"], file)
        _write_kernels(folder, content["kernels"], file)
        for name in ("kernels", "arrays", "storages"):
            content[name] = list(content[name].values())
        # Names of files may contain bytes that are not UTF-8
        text = json.dumps(content, ensure_ascii=False).encode(errors="replace")
        file.writestr("capture.json", text)
    return ""


def _write_arrays(folder: Path, arrays: dict[str, Values], file: zipfile.ZipFile) -> None:
    known = [
        (folder / f"{key}.npy", f"arrays/{number}.npy", array)
        for number, (key, array) in enumerate(arrays.items())
        if not array["why_missing"]
    ]
    total = 0
    for source, name, array in sorted(known, key=lambda each: each[0].stat().st_size):
        total += source.stat().st_size
        if total > MOST_BYTES:
            array["why_missing"] = TOO_LARGE.format("several tensors")
        else:
            file.write(source, name)


def _write_kernels(folder: Path, kernels: dict[str, Values], file: zipfile.ZipFile) -> None:
    with ThreadPool(min(len(kernels), os.cpu_count() or 1) or 1) as pool:
        read = pool.starmap(read_kernel, ((folder / key, kernels[key]) for key in kernels))
        pool.close()
        pool.join()  # no thread may be left when `serve` forks
    for number, codes in enumerate(read):
        for stage, code in codes.items():
            file.writestr(f"kernels/{number}.{stage}", code)


def _find_package() -> str:
    """Return the name and version of the installed package with Triton, which names its build."""
    for info in Path(triton.__file__).parents[1].glob("*triton*.dist-info"):
        if re.search(r"^triton/__init__\.py,", (info / "RECORD").read_text(), re.MULTILINE):
            return info.stem
    return f"triton-{triton.__version__}"


def _read_journal(folder: Path, script: str) -> Values:
    """Return a capture's JSON, but with the kernels, arrays and storages by key.

    The launches are sorted by process id and, in a process, in the order in which they began.
    """
    content: Values = {
        "format": _FORMAT, "triton": triton.__version__, "script": script, "cases": {}, "about": "", "stopped": None,
        "package": _find_package(), "not_captured": {}, "arrays": {}, "kernels": {}, "storages": {}, "launches": {},
        "refused": "",
    }  # fmt: skip
    for line in (folder / "journal").read_bytes().split(b"\n"):
        with suppress(ValueError):  # empty, or the part that a killed process wrote
            name, key, value = json.loads(line)
            if key:
                content[name][key] = value
            else:
                content[name] = value
    if content["stopped"] and content["stopped"]["kind"] == "exit":
        # A test runner catches the reads, and exits with a status
        content["stopped"] = content.pop("read", content["stopped"])
    content["not_captured"] = list(content["not_captured"])
    launches = content["launches"]
    order = sorted(launches, key=lambda key: [int(part) for part in key.split(".")])
    content["launches"] = [launches[key] for key in order if launches[key]]
    numbers = dict[str, int]()
    for name in ("kernels", "arrays", "storages"):
        numbers |= zip(content[name], itertools.count())
    for launch in content["launches"]:
        launch["kernel"] = numbers[launch["kernel"]]
        for tensor in filter(None, map(own_tensor, launch["arguments"])):
            tensor["storage"] = numbers[tensor["storage"]]
            tensor["array"] = numbers.get(tensor["array"])
    return content
