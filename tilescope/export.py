"""Export a run as one Python script or notebook.

The script contains the kernel, tensors, launch, check and timing, and all functions that they name. It imports torch,
Triton and the standard library.
Without a GPU, it checks the kernel in Triton's interpreter and times nothing. `script_template.txt` holds its cells.
"""

import __future__

import ast
import builtins
import dis
import inspect
import itertools
import re
import string
import sys
import textwrap
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
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

# Packages that a script may import, besides the standard library.
LIBRARIES = ("torch", "triton")

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


def _operators(sign: str) -> tuple[Any, Any]:
    """Return a binary operator of formulas and integers, and the same with swapped operands."""

    def operate(left: object, right: object) -> Any:
        if isinstance(left, int | Formula) and isinstance(right, int | Formula):
            return _simplify(f"({left!r}) {sign} ({right!r})")
        return NotImplemented

    return operate, lambda right, left: operate(left, right)


class Formula:
    """An integer that is known only as the expression that computes it.

    It supports +, -, * and // with integers. Other operations raise TypeError: an expression could not follow code that
    depends on their results.
    """

    __add__, __radd__ = _operators("+")
    __sub__, __rsub__ = _operators("-")
    __mul__, __rmul__ = _operators("*")
    __floordiv__, __rfloordiv__ = _operators("//")

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def __neg__(self) -> "Formula":
        return _simplify(f"-({self})")

    def __eq__(self, other: object) -> bool:
        raise TypeError("A formula has no value to compare.")

    def __bool__(self) -> bool:
        raise TypeError("A formula has no value to test.")


def _simplify(expression: str) -> Formula:
    """Return a formula without needless parentheses."""
    return Formula(ast.unparse(ast.parse(expression)))


def _with_formulas(fields: Any, owner: str) -> Any:
    """Return a problem or config whose integers are formulas, such as `problem.M`."""
    integers = [name for name, value in vars(fields).items() if type(value) is int]
    return replace(fields, **{name: Formula(f"{owner}.{name}") for name in integers})


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
        "grid": kernel.grid(launch),
        "arguments": _arguments(kernel, tensors, launch),
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
    kind = type(value).__name__
    if kind == "TensorDescriptor":
        return f"{kind}({value.base}, {value.shape}, {value.strides}, {value.block_shape})"
    raise CannotBeWritten(f"The argument {name} is a {kind}, which a script can't contain.")


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
        wrapper = textwrap.TextWrapper(118, break_long_words=False, break_on_hyphens=False)
        about = "\n".join(map(wrapper.fill, self.about.splitlines()))
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
        launch=_launch(kernel, code),
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
        "kernel_functions": sources.copy(kernel.jitted),
        "values_functions": sources.copy(numerics.values),
        "interpret_function": sources.copy(numerics.interpret),
        "check_functions": sources.copy(numerics.is_right, *checks),
        "time_functions": sources.copy(numerics.times_ms, numerics.describe_times, family.baseline),
        "reference": function_name(family.reference),
        "error_scale": function_name(family.error_scale),
        "library": function_name(family.baseline),
    }
    imports = sources.imports - {"import torch"}
    imports |= {"import sys", "from types import SimpleNamespace"}
    if "TensorDescriptor" in repr(code["arguments"]):
        imports.add("from triton.tools.tensor_descriptor import TensorDescriptor")
    ordered = sorted(imports, key=lambda line: (line.startswith("from"), line))
    return {**copied, "imports": "\n".join(ordered)}


def _inputs(specs: Specs, distribution: str) -> str:
    return "\n".join(
        f'    "{name}": values("{distribution}", {spec.stored}, generator, DEVICE).to(dtype){".t()" * spec.transposed},'
        for name, spec in specs.items()
    )


def _launch(kernel: Kernel, code: Mapping[str, Any]) -> str:
    """Return the body of a function that copies the padded inputs, and launches."""
    copies = "".join(
        f'    source = inputs["{spec.copy_of}"]\n'
        f'    workspaces["{name}"][:source.shape[0], :source.shape[1]].copy_(source)\n'
        for name, spec in code["workspaces"].items()
        if spec.copy_of
    )
    arguments = "".join(f"        {name}={text},\n" for name, text in code["arguments"].items())
    call = f"{function_name(kernel.jitted)}[grid](\n{arguments}    )"
    return f"{copies}    grid = {code['grid']}\n    {call}"


def _workspaces(specs: Mapping[str, TensorSpec]) -> str:
    """Return code that allocates the workspaces, or ""."""
    rows = [
        f'    "{name}": torch.empty_strided({spec.shape}, {spec.strides}, '
        f"dtype={f'torch.{spec.dtype}' if spec.dtype else 'dtype'}, device=DEVICE)"
        f"{'.zero_()' if spec.starts_zeroed or spec.copy_of else ''},"
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


class CannotBeWritten(Exception):
    """A script can't contain part of a kernel's declaration. The message says which part, and why."""


class Sources:
    """The global names of a script. Each keeps the name and the source text that it has in the project.

    Attributes:
        imports: the import statements that the copied sources need. Their annotations are not evaluated.
    """

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self.imports: set[str] = set()
        self._values: dict[str, Any] = dict.fromkeys(reserved)
        self._texts: list[str] = []

    def copy(self, *functions: Any) -> str:
        """Return the sources of functions, jitted or not, and of what they name, each after what it names.

        Sources that an earlier call has returned are left out.

        Raises:
            CannotBeWritten: a function uses something other than functions, classes, constants and libraries.
        """
        self._texts = []
        for function in functions:
            self._define(function_name(function), function)
        return "\n\n\n".join(self._texts)

    def _define(self, name: str, value: Any) -> None:
        if name in self._values:
            if self._values[name] != value:
                raise CannotBeWritten(f"Two definitions share the name {name}.")
            return
        self._values[name] = value
        plain = getattr(value, "fn", value)
        if isinstance(value, ModuleType) and _is_library(value.__name__):
            self._import(f"import {value.__name__}", name)
        elif type(value).__name__ == "constexpr":
            self._texts.append(f"{name} = tl.constexpr({value.value!r})")
        elif callable(plain) and _is_library(plain.__module__):
            self._import(f"from {plain.__module__} import {plain.__name__}", name)
        elif isinstance(plain, FunctionType | type):
            if name != plain.__name__ or name == "<lambda>":
                raise CannotBeWritten(f"{name} is not defined by a `def` or `class` of this name.")
            self._texts.append(self._copy_source(plain))
        elif _is_constant(value):
            self._texts.append(f"{name} = {value!r}")
        else:
            raise CannotBeWritten(f"A script can't contain {name}, of type {type(value).__name__}.")

    def _copy_source(self, source: FunctionType | type) -> str:
        """Return the source of a function or class, after defining what it names."""
        text = textwrap.dedent(inspect.getsource(source)).rstrip()
        code = compile(text, source.__name__, "exec", __future__.annotations.compiler_flag, True)
        scope = vars(sys.modules[source.__module__])
        for instruction, following in itertools.pairwise(_instructions(code)):
            name = instruction.argval
            if instruction.opname == "IMPORT_NAME" and not _is_library(name):
                raise CannotBeWritten(f"{source.__name__} imports {name} inside its body.")
            if instruction.opname not in ("LOAD_NAME", "LOAD_GLOBAL"):
                continue
            if name == "__name__" or (hasattr(builtins, name) and name not in scope):
                continue
            if name not in scope:
                raise CannotBeWritten(f"{source.__name__} uses {name}, which is not global.")
            value = scope[name]
            if isinstance(value, ModuleType) and not _is_library(value.__name__):
                # `tile.store` becomes `store`.
                module, name = name, following.argval
                if name in getattr(source, "__code__", code).co_varnames:
                    raise CannotBeWritten(
                        f"{source.__name__} uses {module}.{name} and a variable {name}."
                    )
                value = getattr(value, name)
                text = re.sub(rf"\b{module}\.{name}\b", name, text)
            self._define(name, value)
        return text

    def _import(self, statement: str, name: str) -> None:
        is_renamed = statement.split()[-1] != name
        self.imports.add(f"{statement} as {name}" if is_renamed else statement)


def function_name(function: Any) -> str:
    """Return the name of a function, jitted or not, in the project and in a script; "None" for None."""
    return getattr(getattr(function, "fn", function), "__name__", str(function))


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)


def _is_library(module: str) -> bool:
    top = module.split(".")[0]
    return top in LIBRARIES or top in sys.stdlib_module_names


def _is_constant(value: Any) -> bool:
    with suppress(ValueError, SyntaxError):
        return bool(ast.literal_eval(repr(value)) == value)
    return False
