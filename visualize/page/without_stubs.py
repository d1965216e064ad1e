"""Import Gradio without writing the stubs that it writes of its own components at every start.

Gradio 6.31 parses the source of each component class as it is defined, to write a `.pyi` beside it: a third of what
importing it takes. Editors read such stubs and no program does, and two processes may write one at once.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_stubs() -> Iterator[None]:
    """To Gradio's metaclass no component has a source file, in which case it writes no stub."""
    file_of = inspect.getfile

    def getfile(thing: Any) -> str:
        if sys._getframe(1).f_globals.get("__name__") == "gradio.component_meta":
            raise OSError("This component gets no stub.")
        return file_of(thing)

    inspect.getfile = getfile  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getfile = file_of
