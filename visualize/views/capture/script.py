"""A script in the page's list: its launches, and how to capture it again."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels import once
from kernels.advice.findings import Compiler
from kernels.capture.reader import Capture, split_case
from visualize.reports.launch import LaunchReport
from visualize.views.capture.controls import capture_options, changed_values
from visualize.views.capture.launches import Launches

# (script with its case, further options of record.py) → the new capture. Raises an exception if there is none.
Recapture = Callable[[str, Sequence[str]], Path]


class Script:
    """A script, or a capture without one.

    Attributes:
        source: the script, with its case, as on the command line.
        launches: of the latest capture.
        before: the launches of the capture before that, to compare with.
        problem: why the script could not be captured again; "" if it could.
        is_stale: whether the launches are of an earlier version of the script.
        version: incremented by each capture.
        chosen: values of its controls on the page that differ from the defaults.

    Args:
        path: the capture.
        recapture: captures the script again. None if that is impossible.
        compiler: see `findings.find`.
    """

    def __init__(
        self,
        path: Path,
        source: str,
        recapture: Recapture | None = None,
        compiler: Compiler | None = None,
    ) -> None:
        self.source = source
        self.before: Launches | None = None
        self.problem = ""
        self.is_stale = False
        self.version = 0
        self.chosen: Mapping[str, Any] = {}
        self._recapture = recapture
        self._compiler = compiler
        self._open = once(lambda: Launches(Capture(path), compiler))
        self._latest: Launches | None = None
        self._modified = self._modification()
        self._lock = threading.Lock()

    @property
    def launches(self) -> Launches:
        return self._latest or self._open()

    @property
    def is_live(self) -> bool:
        """Whether it can be captured again."""
        return self._recapture is not None

    def launch_before(self, number: int) -> LaunchReport | None:
        """Return the report of a launch in the capture before the latest one."""
        if not self.before or self.is_stale:
            return None
        return next(iter(self.before.report().launches[number : number + 1]), None)

    def follow(self) -> None:
        """Capture the script again if its file has changed."""
        with self._lock:
            modified = self._modification()
            if modified and modified != self._modified:
                self._modified = modified
                self._capture_again()

    def choose(self, given: Mapping[str, Any]) -> None:
        """Capture the script again if the values of its controls differ from those of the latest capture."""
        with self._lock:
            chosen = changed_values(self.launches, given, self._open().gpu)
            if self.is_live and chosen != self.chosen:
                self.chosen = chosen
                self._capture_again()

    def _modification(self) -> list[tuple[int, int]]:
        """Return the modification time in ns and the size of the script, or of the files that hold a module's kernels.

        Editors that first truncate a file may write it within one tick of the file system's clock.
        """
        if not self.is_live:
            return []
        path = Path(split_case(self.source)[0])
        files = {path}
        if path.suffix not in (".py", ".ipynb"):
            files = {Path(kernel.file) for kernel in self.launches.content.kernels}
        statuses = [file.stat() for file in sorted(files) if file.is_file()]
        return [(status.st_mtime_ns, status.st_size) for status in statuses]

    def _capture_again(self) -> None:
        """Replace the launches, unless the script fails before its first launch."""
        assert self._recapture
        try:
            path = self._recapture(self.source, capture_options(self.chosen))
            new = Launches(Capture(path), self._compiler)
            content = new.content
            self.problem = "" if content.launches else "".join(content.not_captured[:1])
            if stopped := content.stopped:
                place = f"{Path(stopped.file).name}, line {stopped.line}"
                self.problem = f"{stopped.message} ({place})."
            self.is_stale = bool(self.problem) and not content.launches
            if not self.is_stale:
                self.before = self.launches
                self._latest = new
        except Exception as error:
            self.problem = str(error)
            self.is_stale = True
        if self.is_stale:
            problem = self.problem.removesuffix(".")
            self.problem = f"{problem}. The report below is from an earlier version."
        self.version += 1
