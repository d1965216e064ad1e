"""A script in the page's list: its launches, and how to capture it again."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilescope.advice.findings import Compiler
from tilescope.caching import once
from tilescope.captures.reader import Capture, split_case
from tilescope.reports.launch import Launches, LaunchReport
from visualize.views.capture.controls import capture_options, changed_values

# (script with its case, further options of the recorder, whether a later change supersedes it) → the new capture.
# Raises an exception if there is none.
Recapture = Callable[[str, Sequence[str], Callable[[], bool]], Path]


class Script:
    """A script, or a capture without one.

    Attributes:
        source: the script, with its case, as on the command line.
        launches: of the latest capture.
        before: the launches of the capture before that, to compare with.
        problem: why the script could not be captured again; "" if it could.
        is_stale: whether the launches are of an earlier version of the script.
        version: incremented by each capture.
        is_capturing: whether a capture is in progress.
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
        self.is_capturing = False
        self.version = 0
        self.chosen: Mapping[str, Any] = {}
        self._recapture = recapture
        self._compiler = compiler
        self._open = once(lambda: Launches(Capture(path), compiler))
        self._latest: Launches | None = None
        self._modified = self._modification()
        self._changing = threading.Lock()
        self._capturing = threading.Lock()
        self._captures = 0

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
        """Start to capture the script again if its file has changed."""
        with self._changing:
            modified = self._modification()
            if modified and modified != self._modified:
                self._modified = modified
                self._start_capture()

    def choose(self, given: Mapping[str, Any]) -> None:
        """Start to capture the script again if the values of its controls differ from those of the latest capture."""
        with self._changing:
            chosen = changed_values(self.launches, given, self._open().gpu)
            if self.is_live and chosen != self.chosen:
                self.chosen = chosen
                self._start_capture()

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

    def _start_capture(self) -> None:
        """Capture the script again in a thread. A capture in progress ends, and its result is dropped."""
        self._captures += 1
        self.is_capturing = True
        start = self._captures, capture_options(self.chosen)
        threading.Thread(target=self._capture_again, args=start, daemon=True).start()

    def _capture_again(self, number: int, options: Sequence[str]) -> None:
        """Replace the launches, unless the script fails before its first launch."""
        assert self._recapture
        latest = self.launches
        try:
            with self._capturing:
                path = self._recapture(self.source, options, lambda: number != self._captures)
                new = Launches(Capture(path), self._compiler)
            content = new.content
            problem = "" if content.launches else "".join(content.not_captured[:1])
            if stopped := content.stopped:
                place = f"{Path(stopped.file).name}, line {stopped.line}"
                problem = f"{stopped.message} ({place})."
            is_stale = bool(problem) and not content.launches
            new.report()  # so that no page waits for it
        except Exception as error:
            problem = str(error)
            is_stale = True
        with self._changing:
            if number != self._captures:
                return
            if is_stale:
                problem = (
                    f"{problem.removesuffix('.')}. The report below is from an earlier version."
                )
            else:
                self.before = latest
                self._latest = new
            self.problem = problem
            self.is_stale = is_stale
            self.is_capturing = False
            self.version += 1
