"""Export a run as one Python script or notebook, and a config as a `triton.Config` line.

The script contains the kernel, tensors, launch, check and timing. It imports torch, Triton and the standard library.
Without a GPU, it checks the kernel in Triton's interpreter and times nothing. `script_template.txt` holds its cells.
"""

from __future__ import annotations

import inspect
import itertools
import re
import string
import sys
import textwrap
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels import discover
from kernels.experiment import Experiment
from kernels.export import script_runtime
from kernels.export.inline import Inliner
from kernels.export.launch_code import launch_code, literal
from kernels.gpus import Gpu
from kernels.numerics import values
from kernels.spec import DTYPE_BYTES, Kernel, Launch, Rounding, shape_text

_TEMPLATE = Path(__file__).with_name("script_template.txt")

# Names that the template defines.
_RESERVED = {"problem", "config", "inputs", "output", "launch", "grid", "generator", "allowed", "dtype", "passed"}

NEEDS_GPU = "{dtype} needs a GPU, because Triton's interpreter does not support it. Nothing was checked."

_REFUSAL = f"""\
if INTERPRETED:
    # The interpreter stores this type as raw integers (Triton 3.6 and 3.7.1), so its products and rounding are wrong.
    sys.exit("{NEEDS_GPU}")
"""


@dataclass(frozen=True)
class Script:
    """A run as a script.

    Attributes:
        name: the file name without its suffix.
        about: the lines of the description.
        cells: the code of each cell by title.
    """

    name: str
    about: tuple[str, ...]
    cells: dict[str, str]

    @property
    def text(self) -> str:
        """The script's source, in the percent format: many editors show its cells."""
        about = "\n".join(
            textwrap.fill(line, 118, break_long_words=False, break_on_hyphens=False) for line in self.about
        )
        cells = "\n\n".join(f"# %% {title}\n{code}" for title, code in self.cells.items())
        return f'"""{about}\n"""\n\n{cells}\n'

    def notebook(self) -> dict[str, Any]:
        """Return the script as a Jupyter notebook (nbformat 4.5): the description, then each cell under its title."""

        def cell(kind: str, name: str, text: str, **more: Any) -> dict[str, Any]:
            # A list of lines gives readable diffs.
            return {"cell_type": kind, "id": name, "metadata": {}, "source": text.splitlines(keepends=True), **more}

        cells = [cell("markdown", "about", "\n".join([f"# {self.about[0]}", *self.about[1:]]))]
        for title, code in self.cells.items():
            name = title.lower().replace(" ", "-")
            cells.append(cell("markdown", f"{name}-title", f"## {title}"))
            cells.append(cell("code", name, code, execution_count=None, outputs=[]))
        python = {"display_name": "Python 3", "language": "python", "name": "python3"}
        metadata = {"kernelspec": python, "language_info": {"name": "python"}}
        return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def script(experiment: Experiment, gpu: Gpu) -> Script:
    """Write the script of an experiment.

    Args:
        gpu: the GPU that runs the launch. A persistent kernel's grid depends on its number of SMs.

    Raises:
        CannotBeWritten: a script can't contain part of the kernel's declaration.
    """
    kernel, problem, run = discover()[experiment.kernel], experiment.problem, experiment.run
    family, launch = kernel.family, Launch(problem, experiment.config, gpu)
    code, inliner = launch_code(kernel, launch), Inliner(_RESERVED)
    # Inline the functions that the template calls first, so that they keep their names.
    _, values_texts = inliner.inline(values)
    _, check_texts = inliner.inline(script_runtime.is_right)
    _, time_texts = inliner.inline(script_runtime.times_ms, script_runtime.told)
    (jitted,), kernel_texts = inliner.inline(kernel.jitted)
    (reference, *scale), family_texts = inliner.inline(*filter(None, (family.reference, family.error_scale)))
    (library,), library_texts = inliner.inline(family.baseline)
    needed = {*inliner.imports, "import os", "import sys", "import triton", "import triton.language as tl"}
    triton = sorted(line for line in needed if "triton" in line.split()[1])
    standard = {*needed, "from types import SimpleNamespace"} - {*triton, "import torch"}
    if any(text.startswith("TensorDescriptor") for text in code.arguments.values()):
        triton.append("from triton.tools.tensor_descriptor import TensorDescriptor")
    inputs = (
        f'    "{name}": values("{run.distribution}", {stored}, generator, DEVICE).to(dtype){".t()" * transposed},'
        for name, stored, transposed in code.inputs
    )
    start, comment = 'float("nan")', "NaN: an element that is not written fails the check"
    if kernel.zeroed_output:
        start, comment = "0.0", "zeros: the kernel adds to it"
    # A kernel with an exact output only moves elements, so the interpreter's raw integers do no harm.
    needs_gpu = not family.is_exact and (problem.dtype == "bfloat16" or DTYPE_BYTES[problem.dtype] == 1)
    text = string.Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        imports="\n".join(sorted(standard, key=lambda line: (line.startswith("from"), line))),
        triton_imports="\n".join(triton),
        refusal=_REFUSAL.format(dtype=problem.dtype) if needs_gpu else "",
        problem=_keywords(vars(problem)),
        config=_keywords(vars(experiment.config)),
        dtype=problem.dtype,
        kernel_functions=_join(kernel_texts),
        values_functions=_join(values_texts),
        seed=run.seed,
        inputs="\n".join(inputs),
        output_name=code.output[0],
        output_shape=code.output[1],
        comment=comment,
        start=start,
        grid=code.grid,
        jitted=jitted,
        arguments="\n".join(f"        {name}={text}," for name, text in code.arguments.items()),
        check_functions=_join(check_texts + family_texts),
        allowed=_allowed(kernel, launch, run.distribution),
        reference=reference,
        error_scale=scale[0] if scale else None,
        time_functions=_join(time_texts + library_texts),
        library=library,
        is_cold=run.l2 == "cold",
        kernel=kernel.id,
        baseline=family.baseline_name(problem),
        rate=f"{code.work}, {family.minimal_bytes(problem)}",
    )
    parts = re.split(r"^# %% (.+)\n", text, flags=re.MULTILINE)[1:]
    cells = {title: body.strip() for title, body in zip(parts[::2], parts[1::2], strict=True)}
    sizes = shape_text(problem).replace(" × ", "x")
    return Script(f"{kernel.id.replace('.', '_')}_{sizes}_{problem.dtype}", _about(kernel, launch, experiment), cells)


def _about(kernel: Kernel, launch: Launch, experiment: Experiment) -> tuple[str, ...]:
    doc = (sys.modules[kernel.jitted.fn.__module__].__doc__ or kernel.title).strip().splitlines()[0]
    notes = [kernel.note(launch), kernel.family.note(launch.problem)]
    if race := kernel.race(launch):
        notes.append(f"A data race: {race}. On a GPU the check is expected to fail.")
    return (
        f"{kernel.id}: {doc}",
        "",
        kernel.headline,
        *filter(None, notes),
        "",
        f"Exported from Tilescope for {launch.gpu.name}. It needs only torch and Triton.",
        "On a GPU, it checks the kernel against torch and times both. Without a GPU, it checks the kernel in Triton's "
        "interpreter and times nothing.",
        "",
        f"On the page: ?{urllib.parse.urlencode(experiment.to_address())}",
    )


def _allowed(kernel: Kernel, launch: Launch, distribution: str) -> str:
    """Return code that sets the allowed error, on a GPU and in the interpreter, which multiplies float32 in full."""
    family, roundings = kernel.family, kernel.roundings(launch)
    if family.allowance is None:
        return "allowed = None"
    gpu, cpu = (
        f"allowed = SimpleNamespace(\n    {_keywords(vars(allowance), (chr(10) + '    '))},\n)"
        for allowance in (family.allowance(Rounding(launch, roundings, distribution, cpu)) for cpu in (False, True))
    )
    explained = (
        f"# The error that rounding explains, maximum and expected, as fractions of |reference| (of_value)\n"
        f"# and of {family.magnitude} (of_scale). It depends on {family.limit_follows}.\n{gpu}"
    )
    return explained if cpu == gpu else f"{explained}\nif INTERPRETED:\n{textwrap.indent(cpu, '    ')}"


def _keywords(fields: Mapping[str, Any], space: str = " ") -> str:
    return f",{space}".join(f"{name}={literal(value)}" for name, value in fields.items())


def _join(texts: list[str]) -> str:
    """Join definitions with two blank lines between functions, and none between constants."""
    parts = [texts[0]]
    for before, text in itertools.pairwise(texts):
        is_short = "\n" not in before and "\n" not in text
        parts.append(text if is_short else f"\n\n{text}")
    return "\n".join(parts)


def config_line(kernel: Kernel, experiment: Experiment) -> str:
    """Return a config as a line of the list in `@triton.autotune(configs=[...])`.

    A knob that affects only the grid is not a parameter of the kernel. It becomes a comment.

    >>> from kernels.experiment import from_json
    >>> print(config_line(discover()["transpose.tiled"], from_json({"kernel": "transpose.tiled"}, discover())))
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 128}, num_warps=4, num_stages=3),
    """
    fields, parameters = dict(vars(experiment.config)), inspect.signature(kernel.jitted.fn).parameters
    launch = ", ".join(f"{name}={fields.pop(name)!r}" for name in ("num_warps", "num_stages"))
    constants = ", ".join(f'"{name}": {value!r}' for name, value in fields.items() if name in parameters)
    of_grid = ", ".join(f"{name}={value!r}" for name, value in fields.items() if name not in parameters)
    return f"triton.Config({{{constants}}}, {launch}),{f'  # grid: {of_grid}' if of_grid else ''}"
