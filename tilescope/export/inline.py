"""Copy functions and everything that they call into source text that does not import this project.

A function keeps its comments and docstring. The project's constants and functions that it uses are copied before it,
and renamed where names clash. Imports move to the top. Functions that are not jitted lose their annotations.
"""

import ast
import inspect
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

# Packages that a script may import, besides the standard library.
LIBRARIES = ("torch", "triton")

# An edit of a source text, in bytes: first byte, end, new text.
_Edit = tuple[int, int, str]


class CannotBeWritten(Exception):
    """A script can't contain part of a kernel's declaration. The message says which part, and why."""


class Inliner:
    """Copies functions into one script, each under a unique name.

    Attributes:
        imports: the import statements that the copied functions need.
    """

    def __init__(self, reserved: set[str] | frozenset[str] = frozenset()) -> None:
        self.imports: set[str] = set()
        self._taken = set(reserved)
        self._names: dict[int, str] = {}
        self._constants: dict[str, str] = {}
        self._texts: list[str] = []

    def inline(self, *functions: Callable[..., Any]) -> tuple[list[str], list[str]]:
        """Copy functions, jitted or not, and their dependencies, except those that an earlier call has copied.

        Returns:
            The functions' names in the script, and the new definitions, each after its dependencies.

        Raises:
            CannotBeWritten: a function uses something other than functions, constants and libraries.
        """
        names = [self._copy(function) for function in functions]
        texts = self._texts
        self._texts = []
        return names, texts

    def _copy(self, function: Callable[..., Any]) -> str:
        plain = getattr(function, "fn", function)
        if not isinstance(plain, FunctionType) or plain.__name__ == "<lambda>":
            raise CannotBeWritten(
                f"{plain!r} is not defined by a `def`, so its source can't be copied."
            )
        if id(plain) in self._names:
            return self._names[id(plain)]
        own = plain.__name__.lstrip("_")
        package = plain.__module__.split(".")[-2:][0]
        free = (own, f"{package}_{own}", *(f"{own}_{number}" for number in range(2, 100)))
        name = self._names[id(plain)] = next(
            candidate for candidate in free if candidate not in self._taken
        )
        self._taken.add(name)
        source = textwrap.dedent(inspect.getsource(plain)).encode()
        edits = sorted(
            self._edits(source, plain, name, is_jitted=plain is not function), reverse=True
        )
        for start, end, text in edits:
            source = source[:start] + text.encode() + source[end:]
        tidy = re.sub(
            r"  # (fmt: skip|noqa: \w+)$", "", source.decode().rstrip(), flags=re.MULTILINE
        )
        self._texts.append(re.sub(r'(:|""")\n\n+', r"\1\n", tidy))
        return name

    def _edits(
        self, source: bytes, function: FunctionType, name: str, is_jitted: bool
    ) -> Iterator[_Edit]:
        starts = list(itertools.accumulate(map(len, source.splitlines(keepends=True)), initial=0))

        def span(node: Any) -> tuple[int, int]:
            first = starts[node.lineno - 1] + node.col_offset
            return first, starts[node.end_lineno - 1] + node.end_col_offset

        tree: Any = ast.parse(source).body[0]
        old = tree.name.encode()
        at = source.index(old, span(tree)[0] + len("def "))
        yield at, at + len(old), name
        annotations = dict(_find_annotations(tree, source, span))
        if not is_jitted:
            yield from ((start, span(node)[1], "") for node, start in annotations.items())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._import(alias.name, alias.asname or alias.name, function)
                yield starts[node.lineno - 1], starts[node.lineno], ""
            elif isinstance(node, ast.ImportFrom):
                raise CannotBeWritten(
                    f"{function.__qualname__} imports from {node.module} inside its body."
                )
        ignored = {part for annotation in annotations for part in ast.walk(annotation)}
        outer = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        names = outer.keys() - _local_names(function.__code__)  # without builtins
        for chain in sorted(_chains(tree, ignored), key=lambda chain: span(chain[0])):
            base = ast.unparse(chain[0])
            if base in names and (replaced := self._reference(chain, outer[base], function)):
                yield *span(replaced[0]), replaced[1]

    def _reference(
        self, chain: list[ast.expr], value: Any, function: FunctionType
    ) -> tuple[ast.expr, str] | None:
        """Follow `base.attribute.attribute` to the first part that a script can name; None if a library defines it."""
        for part in chain:
            if isinstance(part, ast.Attribute):
                value = getattr(value, part.attr)
            plain = getattr(value, "fn", value)
            name = ast.unparse(part)
            if isinstance(value, ModuleType):
                if _is_library(value.__name__):
                    self._import(value.__name__, name, function)
                    return None
            elif isinstance(plain, FunctionType) and not _is_library(plain.__module__):
                return part, self._copy(value)
            elif isinstance(plain, FunctionType | type) and _is_library(plain.__module__):
                self.imports.add(f"from {plain.__module__} import {plain.__name__}")
                return part, plain.__name__
            elif type(value).__name__ == "constexpr" and hasattr(value, "value"):
                return part, self._constant(name, f"tl.constexpr({value.value!r})")
            elif _is_constant(value):
                return part, self._constant(name, repr(value))
        raise CannotBeWritten(
            f"{function.__qualname__} uses {ast.unparse(chain[-1])}, of type {type(value).__name__}."
        )

    def _constant(self, name: str, text: str) -> str:
        name = name.split(".")[-1].lstrip("_")
        if self._constants.get(name) != text:
            if name in self._taken:
                raise CannotBeWritten(f"Two definitions share the name {name}.")
            self._taken.add(name)
            self._constants[name] = text
            self._texts.append(f"{name} = {text}")
        return name

    def _import(self, module: str, name: str, function: FunctionType) -> None:
        if not _is_library(module):
            raise CannotBeWritten(f"{function.__qualname__} imports {module}.")
        self._taken.add(name)
        self.imports.add(f"import {module}" if module == name else f"import {module} as {name}")


def _find_annotations(
    tree: ast.AST, source: bytes, span: Callable[[Any], tuple[int, int]]
) -> Iterator[tuple[ast.expr, int]]:
    """Yield each annotation, and the first byte to drop with it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation:
            yield node.annotation, span(node)[0] + len(node.arg.encode())
        elif isinstance(node, ast.AnnAssign) and node.value:
            yield node.annotation, span(node.target)[1]
        elif isinstance(node, ast.FunctionDef) and node.returns:
            yield node.returns, source.rindex(b" ->", 0, span(node.returns)[0])


def _is_library(module: str) -> bool:
    top = module.split(".")[0]
    return top in LIBRARIES or top in sys.stdlib_module_names


def _is_constant(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError):
        return False


def _local_names(code: CodeType) -> set[str]:
    """Return the names that a function binds, including in nested functions and comprehensions."""
    inner = (
        _local_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)
    )
    return {*code.co_varnames, *code.co_cellvars}.union(*inner)


def _chains(tree: ast.AST, ignored: set[ast.AST]) -> Iterator[list[ast.expr]]:
    """Yield each `name.attribute.attribute` that the code reads, at its full length, as the list of its prefixes."""
    attributes = {node.value: node for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node not in ignored:
            chain: list[ast.expr] = [node]
            while attribute := attributes.get(chain[-1]):
                chain.append(attribute)
            yield chain
