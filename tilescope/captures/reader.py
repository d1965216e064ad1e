"""Read a capture: the launches of a script, as the recorder wrote them. Opening one runs no code from it."""

import io
import os
import shutil
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from pydantic import TypeAdapter

from tilescope.captures.content import CapturedKernel, Content, CountedLaunch, Finding
from tilescope.processes import replacing

# Maximum bytes of the file and of each array, of each text, and of all members unpacked.
_MOST_BYTES = 64 << 20
_MOST_TEXT_BYTES = 16 << 20
_MOST_UNPACKED_BYTES = 1 << 30

# The exceptions of damaged files. RuntimeError: it is encrypted. MemoryError: its JSON is nested too deeply.
_DAMAGE = (
    zipfile.BadZipFile, zlib.error, ValueError, LookupError, EOFError, RuntimeError, OverflowError, MemoryError,
)  # fmt: skip

# The zip members with Nsight Compute's counters, and with the findings about each launch.
_COUNTED = "counted.json"
_FINDINGS = "findings.json"

_CONTENT_TYPE = TypeAdapter(Content)
_COUNTED_TYPE = TypeAdapter(tuple[CountedLaunch, ...])
_FINDINGS_TYPE = TypeAdapter[Sequence[Sequence[Finding]]](Sequence[Sequence[Finding]])

T = TypeVar("T")


class UnreadableCapture(Exception):
    """The file is not a capture, or it is damaged. The message is one sentence."""


class Build(NamedTuple):
    """A compiled kernel, and its code by stage."""

    kernel: CapturedKernel
    codes: Mapping[str, str]


class BaseCapture(ABC):
    """Launches, with the compiled code of their kernels and the contents of their tensors.

    Attributes:
        content: of all launches.
    """

    content: Content

    @abstractmethod
    def read_code(self, kernel: int, stage: str) -> str:
        """Return the text of a kernel's "ttir" or of one of the stages; "" if there is no TTIR or SASS."""

    @abstractmethod
    def read_array(self, number: int) -> np.ndarray:
        """Return the elements of an array.

        Raises:
            UnreadableCapture: the array is missing or damaged.
        """

    def build(self, kernel: int) -> Build:
        """Return a kernel and its code by stage."""
        codes = {stage: self.read_code(kernel, stage) for stage in self.content.stages}
        return Build(self.content.kernels[kernel], codes)


def _limit(size: int, most: int, start: str, end: str = "") -> None:
    if size > most:
        raise UnreadableCapture(f"{start} {most >> 20} MiB{end}.")


class Capture(BaseCapture):
    """A readable file. Its compiled code and arrays are read from the file on demand."""

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            UnreadableCapture: the file is missing, damaged, too large, or of a later format.
        """
        self.path = path
        with self._checked():
            name = path.name
            _limit(
                path.stat().st_size,
                _MOST_BYTES,
                f"{name} is larger than",
                ", the limit for captures",
            )
            self._zip = zipfile.ZipFile(path)
            members = self._zip.infolist()
            total = sum(member.file_size for member in members)
            _limit(total, _MOST_UNPACKED_BYTES, f"{name} unpacks to more than")
            for member in members:
                most = _MOST_BYTES if member.filename.endswith(".npy") else _MOST_TEXT_BYTES
                _limit(member.file_size, most, f"A file in {name} unpacks to more than")
            self.content = _CONTENT_TYPE.validate_json(self._zip.read("capture.json"))
            self._check_references()
            if counted := self._read(_COUNTED, _COUNTED_TYPE):
                pairs = zip(self.content.launches, counted, strict=True)
                launches = tuple(replace(launch, **vars(measured)) for launch, measured in pairs)
                self.content = replace(self.content, launches=launches)
            self.findings = self._read(_FINDINGS, _FINDINGS_TYPE)
            if self.findings and len(self.findings) != len(self.content.launches):
                raise ValueError("The findings do not match the launches")

    def _read(self, name: str, kind: TypeAdapter[T]) -> T | None:
        """Return the content of a member; None if the file lacks it."""
        return kind.validate_json(self._zip.read(name)) if name in self._zip.namelist() else None

    def read_code(self, kernel: int, stage: str) -> str:
        with self._checked():
            name = f"kernels/{kernel}.{stage}"
            if stage not in self.content.stages and name not in self._zip.namelist():
                return ""
            return self._zip.read(name).decode()

    def read_array(self, number: int) -> np.ndarray:
        if why := self.content.arrays[number].why_missing:
            raise UnreadableCapture(why)
        with self._checked():
            content = io.BytesIO(self._zip.read(f"arrays/{number}.npy"))
            return np.load(content, allow_pickle=False).ravel()

    def write_counters(self, counted: Sequence[CountedLaunch]) -> None:
        """Add Nsight Compute's counters to the file. They are read when it is opened again."""
        self._add(_COUNTED, _COUNTED_TYPE.dump_json(tuple(counted)))

    def write_findings(self, findings: Sequence[Sequence[Finding]]) -> None:
        """Add the findings about each launch to the file."""
        self.findings = findings
        self._add(_FINDINGS, _FINDINGS_TYPE.dump_json(findings))

    def _add(self, name: str, content: bytes) -> None:
        """Add a member to the file, unless a later capture has replaced it."""
        assert self._zip.fp
        if not os.path.samestat(self.path.stat(), os.fstat(self._zip.fp.fileno())):
            return
        with replacing(self.path) as partial:
            shutil.copyfile(self.path, partial)
            with zipfile.ZipFile(partial, "a") as file:
                file.writestr(name, content)

    def _check_references(self) -> None:
        """Raise IndexError if a launch refers to something that is missing."""
        for launch in self.content.launches:
            _ = self.content.kernels[launch.kernel]
            for tensor in filter(None, (argument.own_tensor for argument in launch.arguments)):
                _ = self.content.storages[tensor.storage]
                if tensor.array is not None:
                    _ = self.content.arrays[tensor.array]

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """Convert the errors of damaged files."""
        try:
            yield
        except _DAMAGE as error:
            why = f"{self.path.name} is not a capture, or it is damaged."
            raise UnreadableCapture(why) from error
        except OSError as error:
            why = f"{self.path.name} can't be read: {error.strerror or error}."
            raise UnreadableCapture(why) from error
