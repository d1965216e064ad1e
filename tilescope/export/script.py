"""Export a run as one Python script or notebook, and a config as a `triton.Config` line.

The script contains the kernel, tensors, launch, check and timing. It imports torch, Triton and the standard library.
Without a GPU, it checks the kernel in Triton's interpreter and times nothing. `script_template.txt` holds its cells.
"""

import ast
import inspect
import re
import string
import sys
import textwrap
import urllib.parse
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tilescope.declare import numerics
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment
from tilescope.declare.gpus import Gpu
from tilescope.declare.spec import (
    TYPE_BYTES,
    Kernel,
    Launch,
    Specs,
    Tensors,
    TensorSpec,
    format_duration,
    interpreter_seconds,
    shape_text,
)
from tilescope.export.sources import CannotBeWritten, Sources, function_name

# The arguments of `triton.Config` that are not parameters of the kernel.
OPTIONS = "num_warps", "num_stages", "num_ctas", "maxnreg"

_TEMPLATE = Path(__file__).with_name("script_template.txt")

# Names that the template defines.
_RESERVED = {
    "problem", "config", "inputs", "output", "workspaces", "launch", "grid", "generator", "dtype", "passed", "fixed",
    "allowed", "theirs", "calls", "ours", "others", "paired", "moved_bytes",
}  # fmt: skip

NEEDS_GPU = (
    "{dtype} needs a GPU, because Triton's interpreter does not support it. Nothing was checked."
)

_REFUSAL = f"""\
if INTERPRETED:
    # The interpreter stores this type as raw integers (Triton 3.6 and 3.7.1), so its products and rounding are wrong.
    sys.exit("{NEEDS_GPU}")
"""


class Formula:
    """An integer that is known only as the expression that computes it.

    It supports +, -, * and // with integers. Other operations raise TypeError: an expression could not follow code that
    depends on their results.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def __neg__(self) -> "Formula":
        return Formula(_without_needless_parentheses(f"-({self})"))

    def __eq__(self, other: object) -> bool:
        raise TypeError("A formula has no value to compare.")

    def __bool__(self) -> bool:
        raise TypeError("A formula has no value to test.")


def _without_needless_parentheses(expression: str) -> str:
    return ast.unparse(ast.parse(expression))


def _define_operator(name: str, sign: str) -> None:
    def operate(left: object, right: object) -> Any:
        if isinstance(left, int | Formula) and isinstance(right, int | Formula):
            return Formula(_without_needless_parentheses(f"({left!r}) {sign} ({right!r})"))
        return NotImplemented

    setattr(Formula, f"__{name}__", operate)
    setattr(Formula, f"__r{name}__", lambda right, left: operate(left, right))


for _name, _sign in (("add", "+"), ("sub", "-"), ("mul", "*"), ("floordiv", "//")):
    _define_operator(_name, _sign)


def _with_formulas(fields: Any, owner: str) -> Any:
    """Return a problem or config whose integers are formulas, such as `problem.M`."""
    named = {
        name: Formula(f"{owner}.{name}")
        for name, value in vars(fields).items()
        if type(value) is int
    }
    return replace(fields, **named)


class _Tensor(Formula):
    """A stand-in with the attributes that `arguments` may read: strides, shape, element size, an aligned address."""

    def __init__(self, text: str, spec: TensorSpec, dtype: str) -> None:
        super().__init__(text)
        self.shape = spec.shape
        self.dtype = SimpleNamespace(itemsize=TYPE_BYTES[dtype])
        self._strides = tuple(
            Formula(f"{text}.stride({axis})") if isinstance(elements, Formula) else elements
            for axis, elements in enumerate(spec.strides)
        )

    def data_ptr(self) -> int:
        return 0

    def stride(self, axis: int | None = None) -> Any:
        return self._strides if axis is None else self._strides[axis]


def launch_code(kernel: Kernel, launch: Launch) -> dict[str, Any]:
    """Return the expressions of a launch, by the template's field names. Their `repr` is source text.

    The function calls the kernel's own declarations with formulas instead of integers. A script therefore contains
    `-(-problem.M // config.BLOCK_M)` instead of 8, and is valid for other sizes, too. If a declaration depends on the
    integers in another way, such as by a comparison, then the launch is written in numbers.

    `fixed` holds the values for which the expressions are valid: all that are not formulas.

    Raises:
        CannotBeWritten: a script can't contain an argument.
    """
    fixed = {**vars(launch.problem), **vars(launch.config)}
    problem = _with_formulas(launch.problem, "problem")
    config = _with_formulas(launch.config, "config")
    try:
        code = _expressions(kernel, Launch(problem, config, launch.gpu))
    except (AttributeError, TypeError):
        return {"fixed": fixed, **_expressions(kernel, launch)}
    named = {**vars(problem), **vars(config)}
    return {"fixed": {name: fixed[name] for name in fixed if named[name] is fixed[name]}, **code}


def _expressions(kernel: Kernel, launch: Launch) -> dict[str, Any]:
    family = kernel.family
    specs = family.tensors(launch.problem)
    output = family.output(launch.problem)
    workspaces = kernel.workspaces(launch)
    tensors = {}
    for name, spec in {**specs, **workspaces}.items():
        owner = "workspaces" if name in workspaces else "inputs"
        text = "output" if name == output else f'{owner}["{name}"]'
        tensors[name] = _Tensor(text, spec, spec.dtype_in(launch.problem))
    return {
        "inputs": {name: spec for name, spec in specs.items() if spec.is_input},
        "output_name": output,
        "output_shape": specs[output].shape,
        "workspaces": workspaces,
        "launches": [
            (each.jitted, each.grid(launch), _arguments(each, tensors, launch))
            for each in kernel.launches(launch)
        ],
        "work": family.work(launch.problem),
        "partial_sums": kernel.roundings(launch),
    }


def _arguments(kernel: Kernel, tensors: Tensors, launch: Launch) -> dict[str, str]:
    """Return the source text of each argument, in the function's order, and of the launch options."""
    given = kernel.arguments(tensors, launch)
    names = dict.fromkeys((*inspect.signature(kernel.jitted.fn).parameters, *given))
    return {name: _argument(name, given[name]) for name in names if name in given}


def _argument(name: str, value: Any) -> str:
    if value is None or isinstance(value, int | float | str | tuple | Formula):
        return repr(value)
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
        about: the description.
        cells: the code of each cell by title.
    """

    name: str
    about: str
    cells: dict[str, str]

    @property
    def text(self) -> str:
        """The script's source, in the percent format: many editors show its cells."""
        about = "\n".join(
            textwrap.fill(line, 118, break_long_words=False, break_on_hyphens=False)
            for line in self.about.splitlines()
        )
        cells = "\n\n".join(f"# %% {title}\n{code}" for title, code in self.cells.items())
        return f'"""{about}\n"""\n\n{cells}\n'

    def notebook(self) -> dict[str, Any]:
        """Return the script as a Jupyter notebook (nbformat 4.5): the description, then each cell under its title."""

        def cell(kind: str, name: str, text: str, **more: Any) -> dict[str, Any]:
            lines = text.splitlines(keepends=True)
            return {"cell_type": kind, "id": name, "metadata": {}, "source": lines, **more}

        cells = [cell("markdown", "about", f"# {self.about}")]
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
    race = kernel.race(launch)
    start = 'float("nan")'
    comment = "NaN: an element that is not written fails the check"
    if kernel.zeroed_output:
        start = "0.0"
        comment = "zeros: the kernel adds to it"
    # A kernel with an exact output only moves elements, so the interpreter's raw integers do no harm.
    needs_gpu = not family.is_exact and problem.dtype not in ("float16", "float32")
    allowed = None
    if family.allowance:
        allowed = f'''{function_name(family.allowance)}(
    problem,
    {code["partial_sums"]},
    "{run.distribution}",
    None if INTERPRETED else torch.cuda.get_device_capability(),
)'''
    text = string.Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        code | _copy_functions(kernel, code),
        refusal=_REFUSAL.format(dtype=problem.dtype) if needs_gpu else "",
        problem=_keywords(problem),
        config=_keywords(experiment.config),
        dtype=problem.dtype,
        seed=run.seed,
        inputs=_inputs(code["inputs"], run.distribution),
        comment=comment,
        start=start,
        launches="\n".join(_launch(*each) for each in code["launches"]),
        allocated=_workspaces(code["workspaces"]),
        race=f"\nprint({f'It passed, but it is still a race: {race}.'!r})" if race else "",
        shape=shape_text(problem),
        duration=format_duration(max(1.0, interpreter_seconds(kernel, launch))),
        allowed=allowed,
        is_cold=run.l2 == "cold",
        kernel=kernel.id,
        baseline=family.baseline_name(problem),
    )
    parts = re.split(r"^# %% (.+)\n", text, flags=re.MULTILINE)[1:]
    cells = {title: body.strip() for title, body in zip(parts[::2], parts[1::2], strict=True)}
    return ExportedScript(
        f"{kernel.id.replace('.', '_')}_{shape_text(problem).replace(' × ', 'x')}_{problem.dtype}",
        _about(kernel, launch, experiment),
        cells,
    )


def _copy_functions(kernel: Kernel, code: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template's fields with copied functions, their names, and the imports that they need."""
    family = kernel.family
    sources = Sources(_RESERVED)
    checks = filter(None, (family.reference, family.error_scale, family.allowance))
    copied = {
        "kernel_functions": sources.copy(*(jitted for jitted, _, _ in code["launches"])),
        "values_functions": sources.copy(numerics.values),
        "interpret_function": sources.copy(numerics.interpret),
        "check_functions": sources.copy(numerics.is_right, *checks),
        "time_functions": sources.copy(numerics.times_ms, numerics.describe_times, family.baseline),
        "reference": function_name(family.reference),
        "error_scale": function_name(family.error_scale),
        "library": function_name(family.baseline),
    }
    imports = sources.imports - {"import torch"} | {
        "import sys",
        "from types import SimpleNamespace",
    }
    if any("TensorDescriptor" in repr(arguments) for _, _, arguments in code["launches"]):
        imports.add("from triton.tools.tensor_descriptor import TensorDescriptor")
    ordered = sorted(imports, key=lambda line: (line.startswith("from"), line))
    return {**copied, "imports": "\n".join(ordered)}


def _inputs(specs: Specs, distribution: str) -> str:
    return "\n".join(
        f'    "{name}": values("{distribution}", {spec.stored}, generator, DEVICE).to(dtype){".t()" * spec.transposed},'
        for name, spec in specs.items()
    )


def _launch(jitted: Any, grid: tuple[Any, ...], arguments: Mapping[str, str]) -> str:
    lines = "".join(f"        {name}={text},\n" for name, text in arguments.items())
    return f"    grid = {grid}\n    {function_name(jitted)}[grid](\n{lines}    )"


def _workspaces(specs: Mapping[str, TensorSpec]) -> str:
    """Return code that allocates the workspaces, or ""."""
    rows = [
        f'    "{name}": torch.empty_strided({spec.shape}, {spec.strides}, '
        f"dtype={f'torch.{spec.dtype}' if spec.dtype else 'dtype'}, device=DEVICE){'.zero_()' * spec.starts_zeroed},"
        for name, spec in specs.items()
    ]
    return "\n".join(["", "workspaces = {", *rows, "}"]) if rows else ""


def _about(kernel: Kernel, launch: Launch, experiment: Experiment) -> str:
    doc = (sys.modules[kernel.jitted.fn.__module__].__doc__ or kernel.title).strip().splitlines()[0]
    notes = [kernel.note(launch), kernel.family.note(launch.problem)]
    if race := kernel.race(launch):
        notes.append(f"A data race: {race}. On a GPU the check is expected to fail.")
    lines = (
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
    return "\n".join(lines)


def _keywords(fields: Any) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in vars(fields).items())


def config_line(experiment: Experiment, parameters: Container[str] = ()) -> str:
    """Return a config as a line of the list in `@triton.autotune(configs=[...])`.

    A knob that affects only the launch is not a parameter of the kernel. It becomes a comment, unless it is off.

    Args:
        parameters: the kernel's parameters, for a script's case.

    >>> from tilescope.declare.experiment import from_json
    >>> print(config_line(from_json({"kernel": "transpose.tiled"})))
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 128}, num_warps=4, num_stages=3),
    """
    fields = {name: value for name, value in vars(experiment.config).items() if value is not None}
    options = [name for name in OPTIONS if name in fields]
    launch = "".join(f", {name}={fields.pop(name)!r}" for name in options)
    if not experiment.is_case:
        kernel = discover()[experiment.kernel]
        parameters = inspect.signature(kernel.jitted.fn).parameters
    constants = ", ".join(
        f'"{name}": {value!r}' for name, value in fields.items() if name in parameters
    )
    outside = {
        name: value for name, value in fields.items() if name not in parameters and value != "never"
    }
    of_launch = ", ".join(f"{name}={value!r}" for name, value in outside.items())
    return (
        f"triton.Config({{{constants}}}{launch}),{f'  # launch: {of_launch}' if of_launch else ''}"
    )
