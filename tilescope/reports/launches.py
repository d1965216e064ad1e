"""The launches of a capture, with their counts and reports."""

import math
from functools import lru_cache

import numpy as np

from tilescope.advice.findings import Compiler
from tilescope.caching import once
from tilescope.captures.reader import Capture, CapturedKernel
from tilescope.evaluate.captured import count_launch
from tilescope.evaluate.counts import LaunchCounts, OperationCounts
from tilescope.inside.inspect import Inspection, inspect
from tilescope.reports.launch import make_report


class Launches:
    """The launches of a capture, counted when they are first shown."""

    def __init__(self, capture: Capture, compiler: Compiler | None = None) -> None:
        self.capture = capture
        self.content = capture.content
        self.gpu = str(self.content.gpu.get("name", ""))
        self.counts = lru_cache(maxsize=256)(self._count)
        self.inspections = lru_cache(maxsize=256)(self._inspect)
        # The first call tries changes.
        self.report = once(lambda: make_report(capture, compiler, self.counts, self.inspections))

    @property
    def caption(self) -> str:
        """The line below a saved picture."""
        return f"{self.content.script}, {self.gpu}, Triton {self.content.triton}"

    def _count(
        self, number: int, program: int | None = None, is_textbook: bool = False
    ) -> LaunchCounts:
        programs = None if program is None else np.array([program])
        return count_launch(self.capture, self.content.launches[number], programs, is_textbook)

    def execution(self, number: int, operation: int, program: int) -> OperationCounts:
        """Return an operation of a launch, numbered as in its report, in one program.

        Of the copies of the operation, it is the first that the program executes.
        """
        counts = self.counts(number)
        group = counts.by_line()[operation]
        places = [n for n, op in enumerate(counts.operations) if any(op is each for each in group)]
        own = self.counts(number, program).operations
        copies = [own[place] for place in places]
        return next((op for op in copies if op.tally.example), copies[0])

    def _inspect(self, number: int) -> Inspection:
        return inspect(self.capture, self.content.launches[number], self.counts(number))

    def kernel(self, number: int) -> CapturedKernel:
        return self.content.kernels[self.content.launches[number].kernel]

    def programs(self, number: int) -> int:
        return math.prod(self.content.launches[number].grid)
