"""Export a run as one Python script or notebook, and a config as a `triton.Config` line.

The script contains the kernel, tensors, launch, check and timing. It imports torch, Triton and the standard library.
Without a GPU, it checks the kernel in Triton's interpreter and times nothing. `script_template.txt` holds its cells.
"""

import ast
import inspect
import json
import operator
import re
import string
import sys
import textwrap
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from tilescope.declare import numerics
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment
from tilescope.declare.gpus import Gpu
from tilescope.declare.interpreter_time import estimate_seconds
from tilescope.declare.spec import (
    DTYPE_BYTES,
    TYPE_BYTES,
    Kernel,
    Launch,
    TensorSpec,
    format_duration,
    shape_text,
)
from tilescope.export.inline import CannotBeWritten, Inliner

_TEMPLATE = Path(__file__).with_name("script_template.txt")

# Names that the template defines.
_RESERVED = {
    "problem", "config", "inputs", "output", "workspaces", "launch", "grid", "generator", "allowed", "dtype", "passed",
}  # fmt: skip

NEEDS_GPU = (
    "{dtype} needs a GPU, because Triton's interpreter does not support it. Nothing was checked."
)

_REFUSAL = f"""\
if INTERPRETED:
    # The interpreter stores this type as raw integers (Triton 3.6 and 3.7.1), so its products and rounding are wrong.
    sys.exit("{NEEDS_GPU}")
"""


class SymbolicInt(int):
    """An integer whose repr is the expression that computes it.

    Attributes:
        text: the expression.
        untraced: collects operations that can't be expressed, such as comparisons. Code that depends on their results
            is valid only for these values.
    """

    text: str
    untraced: list[str]

    def __new__(cls, value: int, text: str, untraced: list[str]) -> Self:
        number = super().__new__(cls, value)
        number.text = text
        number.untraced = untraced
        return number

    def __repr__(self) -> str:
        return self.text

    def __neg__(self) -> "SymbolicInt":
        return SymbolicInt(
            int.__neg__(self), _without_needless_parentheses(f"-({self.text})"), self.untraced
        )


def _without_needless_parentheses(expression: str) -> str:
    return ast.unparse(ast.parse(expression))


def _trace(name: str, sign: str) -> None:
    """Define an operator of SymbolicInt. With a number of another type, its result is a plain number."""
    compute = getattr(operator, name)

    def operation(left: int, right: int) -> Any:
        untraced = next(
            number.untraced for number in (left, right) if isinstance(number, SymbolicInt)
        )
        if not (isinstance(left, int) and isinstance(right, int)):
            untraced.append(name)
            return NotImplemented
        text = _without_needless_parentheses(f"({left!r}) {sign} ({right!r})")
        return SymbolicInt(compute(int.__index__(left), int.__index__(right)), text, untraced)

    setattr(SymbolicInt, f"__{name}__", operation)
    setattr(SymbolicInt, f"__r{name}__", lambda self, other: operation(other, self))


def _record(name: str) -> None:
    plain = getattr(int, name)

    def operation(self: SymbolicInt, *others: Any) -> Any:
        self.untraced.append(name)
        return plain(self, *others)

    setattr(SymbolicInt, name, operation)


for _name, _sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("floordiv", "//")):
    _trace(_name, _sign)
_VALUE_FREE = {
    "__doc__",
    "__format__",
    "__getattribute__",
    "__getnewargs__",
    "__hash__",
    "__sizeof__",
}
for _name in vars(int).keys() - vars(SymbolicInt).keys() - _VALUE_FREE:
    if _name.startswith("__"):
        _record(_name)


class _SymbolicTensor:
    """A stand-in with the attributes that `arguments` may read: strides, shape, element size, an aligned address."""

    def __init__(self, text: str, spec: TensorSpec, dtype: str, untraced: list[str]) -> None:
        self.text = text
        self.shape = spec.shape
        self.dtype = SimpleNamespace(itemsize=TYPE_BYTES[dtype])
        self._strides = tuple(
            SymbolicInt(n, f"{text}.stride({axis})", untraced)
            for axis, n in enumerate(spec.strides)
        )

    def __repr__(self) -> str:
        return self.text

    def data_ptr(self) -> int:
        return 0

    def stride(self, axis: int | None = None) -> Any:
        return self._strides if axis is None else self._strides[axis]


def launch_code(kernel: Kernel, launch: Launch) -> dict[str, Any]:
    """Return the source text of one launch: Python expressions, by the template's field names.

    The function calls the kernel's own declarations with integers that record their expressions. A script therefore
    contains `-(-M // BLOCK_M)` instead of 8. A comment follows the grid if its numbers are valid only for this problem,
    config and GPU. Arguments are passed by name, in the kernel's order, before the launch options.

    Raises:
        CannotBeWritten: a script can't contain an argument.
    """
    untraced: list[str] = []

    def symbolic(declared: Any, owner: str) -> Any:
        numbers = {name: value for name, value in vars(declared).items() if type(value) is int}
        named = {
            name: SymbolicInt(value, f"{owner}.{name}", untraced) for name, value in numbers.items()
        }
        return replace(declared, **named)

    traced = Launch(
        symbolic(launch.problem, "problem"), symbolic(launch.config, "config"), launch.gpu
    )
    specs = kernel.family.tensors(traced.problem)
    output = kernel.family.output(traced.problem)
    untraced.clear()
    grid = repr(shape := kernel.grid(traced))
    # A plain number other than 1 may still depend on a field.
    if untraced or any(type(size) is int and size != 1 for size in shape):
        grid = f"{kernel.grid(launch)}  # for this problem and config, on {launch.gpu.name}"
    workspaces = kernel.workspaces(launch)
    tensors = {}
    for name, spec in {**specs, **workspaces}.items():
        text = (
            "output"
            if name == output
            else f'{"workspaces" if name in workspaces else "inputs"}["{name}"]'
        )
        tensors[name] = _SymbolicTensor(text, spec, spec.dtype_in(launch.problem), untraced)
    first = kernel.first(launch)
    return {
        "workspaces": workspaces,
        "first": (first.programs, _arguments(first.jitted, first.arguments(tensors)))
        if first
        else None,
        "inputs": [
            (name, spec.stored, spec.transposed) for name, spec in specs.items() if spec.is_input
        ],
        "output_name": output,
        "output_shape": specs[output].shape,
        "grid": grid,
        "arguments": _arguments(kernel.jitted, kernel.arguments(tensors, traced)),
        "work": kernel.family.work(traced.problem),
    }


def _arguments(jitted: Any, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the source text of each argument, in the function's order."""
    parameters = inspect.signature(jitted.fn).parameters
    order = [
        *(name for name in parameters if name in given),
        *(name for name in given if name not in parameters),
    ]
    return {name: _argument(name, given[name]) for name in order}


def literal(value: object) -> str:
    """Return a constant as source text, strings in double quotes."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _argument(name: str, value: Any) -> str:
    if value is None or isinstance(value, int | float | str | tuple | _SymbolicTensor):
        return literal(value)
    if type(value).__name__ == "TensorDescriptor":
        return (
            f"TensorDescriptor({value.base}, {value.shape}, {value.strides}, {value.block_shape})"
        )
    raise CannotBeWritten(
        f"The argument {name} is a {type(value).__name__}, which a script can't contain."
    )


@dataclass(frozen=True)
class ExportedScript:
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
            textwrap.fill(line, 118, break_long_words=False, break_on_hyphens=False)
            for line in self.about
        )
        cells = "\n\n".join(f"# %% {title}\n{code}" for title, code in self.cells.items())
        return f'"""{about}\n"""\n\n{cells}\n'

    def notebook(self) -> dict[str, Any]:
        """Return the script as a Jupyter notebook (nbformat 4.5): the description, then each cell under its title."""

        def cell(kind: str, name: str, text: str, **more: Any) -> dict[str, Any]:
            # A list of lines gives readable diffs.
            return {
                "cell_type": kind,
                "id": name,
                "metadata": {},
                "source": text.splitlines(keepends=True),
                **more,
            }

        cells = [cell("markdown", "about", "\n".join([f"# {self.about[0]}", *self.about[1:]]))]
        for title, code in self.cells.items():
            name = title.lower().replace(" ", "-")
            cells.append(cell("markdown", f"{name}-title", f"## {title}"))
            cells.append(cell("code", name, code, execution_count=None, outputs=[]))
        python = {"display_name": "Python 3", "language": "python", "name": "python3"}
        metadata = {"kernelspec": python, "language_info": {"name": "python"}}
        return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def script(experiment: Experiment, gpu: Gpu) -> ExportedScript:
    """Write the script of an experiment.

    Args:
        gpu: the GPU that runs the launch. A persistent kernel's grid depends on its number of SMs.

    Raises:
        CannotBeWritten: a script can't contain part of the kernel's declaration.
    """
    kernel = discover()[experiment.kernel]
    problem = experiment.problem
    run = experiment.run
    family = kernel.family
    launch = Launch(problem, experiment.config, gpu)
    code = launch_code(kernel, launch)
    inputs = (
        f'    "{name}": values("{run.distribution}", {stored}, generator, DEVICE).to(dtype){".t()" * transposed},'
        for name, stored, transposed in code["inputs"]
    )
    race = kernel.race(launch)
    start = 'float("nan")'
    comment = "NaN: an element that is not written fails the check"
    if kernel.zeroed_output:
        start = "0.0"
        comment = "zeros: the kernel adds to it"
    # A kernel with an exact output only moves elements, so the interpreter's raw integers do no harm.
    needs_gpu = not family.is_exact and (
        problem.dtype == "bfloat16" or DTYPE_BYTES[problem.dtype] == 1
    )
    text = string.Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        code | _copy_functions(kernel, launch, code),
        refusal=_REFUSAL.format(dtype=problem.dtype) if needs_gpu else "",
        problem=_keywords(vars(problem)),
        config=_keywords(vars(experiment.config)),
        dtype=problem.dtype,
        seed=run.seed,
        inputs="\n".join(inputs),
        comment=comment,
        start=start,
        arguments=_lines(code["arguments"]),
        allocated=_workspaces(code["workspaces"]),
        race=f"\nprint({literal(f'It passed, but it is still a race: {race}.')})" if race else "",
        estimate=_estimate(kernel, launch, is_general="#" not in code["grid"]),
        allowed=_allowed(kernel, launch, run.distribution),
        is_cold=run.l2 == "cold",
        kernel=kernel.id,
        baseline=family.baseline_name(problem),
        moved_bytes=family.minimal_bytes(problem),
    )
    parts = re.split(r"^# %% (.+)\n", text, flags=re.MULTILINE)[1:]
    cells = {title: body.strip() for title, body in zip(parts[::2], parts[1::2], strict=True)}
    return ExportedScript(
        f"{kernel.id.replace('.', '_')}_{shape_text(problem).replace(' × ', 'x')}_{problem.dtype}",
        _about(kernel, launch, experiment),
        cells,
    )


def _copy_functions(kernel: Kernel, launch: Launch, code: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template's fields with copied functions, their names, and the imports that they need."""
    family = kernel.family
    inliner = Inliner(_RESERVED)

    def inline(*functions: Any) -> tuple[list[str], str]:
        names, texts = inliner.inline(*functions)
        return names, "\n\n\n".join(texts)

    # Inline the functions that the template itself calls before all others, so that they keep their names.
    _, values = inline(numerics.values)
    _, interpret = inline(numerics.interpret)
    _, check = inline(numerics.is_right)
    _, time = inline(numerics.times_ms, numerics.describe_times)
    (*firsts, jitted), kernels = inline(*(each.jitted for each in kernel.launches(launch)))
    (reference, *scale), own = inline(*filter(None, (family.reference, family.error_scale)))
    (library,), baseline = inline(family.baseline)
    needed = {
        *inliner.imports,
        "import os",
        "import sys",
        "import triton",
        "import triton.language as tl",
    }
    triton = sorted(line for line in needed if "triton" in line.split()[1])
    standard = {*needed, "from types import SimpleNamespace"} - {*triton, "import torch"}
    if any(text.startswith("TensorDescriptor") for text in code["arguments"].values()):
        triton.append("from triton.tools.tensor_descriptor import TensorDescriptor")
    return {
        "imports": "\n".join(sorted(standard, key=lambda line: (line.startswith("from"), line))),
        "triton_imports": "\n".join(triton),
        "kernel_functions": kernels,
        "values_functions": values,
        "jitted": jitted,
        "first": "".join(_first(name, *code["first"]) for name in firsts),
        "interpret_function": interpret,
        "check_functions": f"{check}\n\n\n{own}",
        "reference": reference,
        "error_scale": scale[0] if scale else None,
        "time_functions": f"{time}\n\n\n{baseline}",
        "library": library,
    }


def _lines(arguments: Mapping[str, str]) -> str:
    return "\n".join(f"        {name}={text}," for name, text in arguments.items())


def _first(jitted: str, programs: int, arguments: Mapping[str, str]) -> str:
    return f"    {jitted}[({programs},)](\n{_lines(arguments)}\n    )\n"


def _workspaces(specs: Mapping[str, TensorSpec]) -> str:
    """Return code that allocates the workspaces, or ""."""
    rows = [
        f'    "{name}": torch.empty_strided({spec.shape}, {spec.strides}, '
        f"dtype={f'torch.{spec.dtype}' if spec.dtype else 'dtype'}, device=DEVICE){'.zero_()' * spec.starts_zeroed},"
        for name, spec in specs.items()
    ]
    return "\n".join(["", "workspaces = {", *rows, "}"]) if rows else ""


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


def _estimate(kernel: Kernel, launch: Launch, is_general: bool) -> str:
    """Say how long the interpreter takes, and how to shorten the wait.

    Args:
        is_general: whether the script is also right for other sizes.
    """
    duration = format_duration(max(1.0, estimate_seconds(kernel, launch)))
    shorten = "Make the sizes in `problem` smaller" if is_general else "Export a smaller shape"
    return f"Triton's interpreter takes about {duration} for {shape_text(launch.problem)}. {shorten} to wait less."


def _allowed(kernel: Kernel, launch: Launch, distribution: str) -> str:
    """Return code that sets the allowed error on a GPU and in the interpreter, which multiplies float32 in full."""
    family = kernel.family
    roundings = kernel.roundings(launch)
    if family.allowance is None:
        return "allowed = None"
    gpu, cpu = (
        f"allowed = SimpleNamespace(\n    {_keywords(vars(allowance), (chr(10) + '    '))},\n)"
        for allowance in (
            family.allowance(launch, roundings, distribution, is_cpu) for is_cpu in (False, True)
        )
    )
    explained = (
        f"# The error that rounding explains, maximum and expected, as fractions of |reference| (of_value)\n"
        f"# and of {family.magnitude} (of_scale). It depends on {family.limit_follows}.\n{gpu}"
    )
    return (
        explained if cpu == gpu else f"{explained}\nif INTERPRETED:\n{textwrap.indent(cpu, '    ')}"
    )


def _keywords(fields: Mapping[str, Any], space: str = " ") -> str:
    return f",{space}".join(f"{name}={literal(value)}" for name, value in fields.items())


def config_line(kernel: Kernel, experiment: Experiment) -> str:
    """Return a config as a line of the list in `@triton.autotune(configs=[...])`.

    A knob that affects only the launch is not a parameter of the kernel. It becomes a comment, unless it is off.

    >>> from tilescope.declare.experiment import from_json
    >>> print(config_line(discover()["transpose.tiled"], from_json({"kernel": "transpose.tiled"})))
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 128}, num_warps=4, num_stages=3),
    """
    fields = dict(vars(experiment.config))
    parameters = inspect.signature(kernel.jitted.fn).parameters
    launch = ", ".join(f"{name}={fields.pop(name)!r}" for name in ("num_warps", "num_stages"))
    constants = ", ".join(
        f'"{name}": {value!r}' for name, value in fields.items() if name in parameters
    )
    outside = {
        name: value for name, value in fields.items() if name not in parameters and value != "never"
    }
    of_launch = ", ".join(f"{name}={value!r}" for name, value in outside.items())
    return f"triton.Config({{{constants}}}, {launch}),{f'  # launch: {of_launch}' if of_launch else ''}"
