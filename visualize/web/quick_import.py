"""Import Gradio in less time: without stubs of its components, and without a look for garbage.

Gradio 6.31 parses the source of each component class as it is defined, to write a `.pyi` beside it: a third of what
importing it takes. Editors read such stubs and no program does, and two processes may write one at once. What an import
makes stays, so that the garbage collector, a tenth of what is left, has nothing to find in it, then or later.
"""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quick_import() -> Iterator[None]:
    """What is imported here gets no stub, and is not looked through for garbage."""
    file_of, was_enabled = inspect.getfile, gc.isenabled()

    def getfile(thing: Any) -> str:
        # To Gradio's metaclass no component has a source file, in which case it writes no stub.
        if sys._getframe(1).f_globals.get("__name__") == "gradio.component_meta":
            raise OSError("This component gets no stub.")
        return file_of(thing)

    inspect.getfile = getfile  # type: ignore[assignment]
    gc.disable()
    try:
        yield
    finally:
        inspect.getfile = file_of
        gc.freeze()
        if was_enabled:
            gc.enable()
