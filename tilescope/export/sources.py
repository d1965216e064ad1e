"""Copy the sources of functions and of everything that they name into a script that does not import this project."""

import __future__

import ast
import builtins
import dis
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

# Packages that a script may import, besides the standard library.
LIBRARIES = ("torch", "triton")


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
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError):
        return False
