"""Functions with all that they call, as source text that needs none of our modules. Read by inspect and ast.

A function keeps its comments and its docstring. Calls of other functions of ours are written by the name that these
have in the text, annotations and imports inside functions are left out, and constants are copied.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from kernels.export.described import CannotBeWritten

# What a script may import, besides the standard library.
LIBRARIES = ("torch", "triton")

_CONSTANTS = (bool, int, float, str, bytes, type(None))


@dataclass(frozen=True)
class _Edit:
    """Bytes of a source, from line and column to line and column (lines from 1), that are replaced."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


@dataclass
class Inlined:
    """Source texts in the order in which a script must hold them.

    Attributes:
        imports: statements.
        texts: constants and functions, what is called before what calls it: those that `added` has not given out yet.
        taken: names that are given away already.
    """

    imports: set[str] = field(default_factory=set)
    texts: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    _names: dict[int, str] = field(default_factory=dict)
    _constants: dict[str, str] = field(default_factory=dict)

    def added(self, *functions: Callable[..., Any]) -> tuple[list[str], list[str]]:
        """Add functions; returns their names, and the texts that they need and that were not given out before."""
        names = [self.add(function) for function in functions]
        texts, self.texts = self.texts, []
        return names, texts

    def add(self, function: Callable[..., Any]) -> str:
        """Write a function, jitted or not, after all that it calls; returns the name that it has in the text.

        Raises:
            CannotBeWritten: where it uses something that is neither a function, a constant nor a library.
        """
        plain = getattr(function, "fn", function)
        if not isinstance(plain, FunctionType) or plain.__name__ == "<lambda>":
            raise CannotBeWritten(f"{plain!r} is no function that a `def` names, so its source can't be written.")
        if id(plain) in self._names:
            return self._names[id(plain)]
        name = self._names[id(plain)] = self._free_name(plain)
        text = textwrap.dedent(inspect.getsource(plain))
        tree = ast.parse(text).body[0]
        assert isinstance(tree, ast.FunctionDef)
        edits = [self._renamed(text, tree, name)]
        if not hasattr(function, "fn"):
            edits += _without_annotations(text, tree)
        edits += self._dropped_imports(tree, plain)
        edits += self._references(tree, plain)
        self.texts.append(_tidy(_edited(text, edits)))
        return name

    def _free_name(self, function: FunctionType) -> str:
        """The function's own name, or where another one has it, with that of its package in front."""
        own = function.__name__.lstrip("_")
        package = function.__module__.split(".")[-2:][0]
        names = (own, f"{package}_{own}", *(f"{own}_{number}" for number in range(2, 100)))
        name = next(one for one in names if one not in self.taken)
        self.taken.add(name)
        return name

    def _renamed(self, text: str, tree: ast.FunctionDef, name: str) -> _Edit:
        line = text.splitlines()[tree.lineno - 1]
        column = len(line[: line.index(tree.name, tree.col_offset + len("def "))].encode())
        return _Edit((tree.lineno, column), (tree.lineno, column + len(tree.name.encode())), name)

    def _dropped_imports(self, tree: ast.FunctionDef, function: FunctionType) -> Iterator[_Edit]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._import(alias.name, alias.asname or alias.name, function)
                assert node.end_lineno is not None
                yield _Edit((node.lineno, 0), (node.end_lineno + 1, 0), "")
            elif isinstance(node, ast.ImportFrom):
                raise CannotBeWritten(f"{function.__qualname__} imports from {node.module} inside its body.")

    def _references(self, tree: ast.FunctionDef, function: FunctionType) -> Iterator[_Edit]:
        """What is written where the function names something of its module."""
        known = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        own = _bound_in(tree)
        for node in _loads(tree):
            base: ast.expr = node
            while isinstance(base, ast.Attribute):
                base = base.value
            assert isinstance(base, ast.Name)
            if base.id in own or (base.id not in known and hasattr(builtins, base.id)):
                continue
            if base.id not in known:
                raise CannotBeWritten(f"{function.__qualname__} uses {base.id}, which is not known in its module.")
            yield from self._reference(node, base, known[base.id], function)

    def _reference(self, node: ast.expr, base: ast.Name, value: Any, function: FunctionType) -> Iterator[_Edit]:
        """Follow `base.attribute.attribute` to the first value that can be written."""
        chain: list[ast.expr] = [node]
        while isinstance(chain[-1], ast.Attribute):
            chain.append(chain[-1].value)
        for part in reversed(chain):
            if part is not base:
                assert isinstance(part, ast.Attribute)
                value = getattr(value, part.attr)
            if isinstance(value, ModuleType):
                if _is_library(value.__name__):
                    self._import(value.__name__, base.id, function)
                    return
                continue
            written = self._written(value, ast.unparse(part), function)
            if written:
                assert part.end_lineno is not None
                assert part.end_col_offset is not None
                place = (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)
                yield _Edit(*place, written)
                return
        raise CannotBeWritten(f"{function.__qualname__} uses {ast.unparse(node)}, a {type(value).__name__}.")

    def _written(self, value: Any, name: str, function: FunctionType) -> str:
        """The name of a function or a constant in the text; "" for what is looked into further."""
        plain = getattr(value, "fn", value)
        if isinstance(plain, FunctionType):
            if _is_library(plain.__module__):
                self.imports.add(f"from {plain.__module__} import {plain.__name__}")
                return plain.__name__
            return self.add(value)
        if type(value).__name__ == "constexpr" and hasattr(value, "value"):
            return self._constant(name, f"tl.constexpr({value.value!r})")
        if _is_constant(value):
            return self._constant(name, repr(value))
        return ""

    def _constant(self, name: str, text: str) -> str:
        name = name.split(".")[-1].lstrip("_")
        if self._constants.get(name) != text:
            if name in self.taken:
                raise CannotBeWritten(f"Two things are called {name}.")
            self.taken.add(name)
            self._constants[name] = text
            self.texts.append(f"{name} = {text}")
        return name

    def _import(self, module: str, name: str, function: FunctionType) -> None:
        if not _is_library(module):
            raise CannotBeWritten(f"{function.__qualname__} imports {module}.")
        self.taken.add(name)
        self.imports.add(f"import {module}" if module == name else f"import {module} as {name}")


def _is_library(module: str) -> bool:
    top = module.split(".")[0]
    return top in LIBRARIES or top in sys.stdlib_module_names


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple | list | set | frozenset):
        return all(map(_is_constant, value))
    if isinstance(value, dict):
        return all(map(_is_constant, [*value, *value.values()]))
    return type(value) in _CONSTANTS


def _bound_in(tree: ast.FunctionDef) -> set[str]:
    """Names that a function binds itself, or that functions in it do."""
    bound = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.FunctionDef) and node is not tree:
            bound.add(node.name)
        elif isinstance(node, ast.Import):
            bound |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    return bound


def _loads(tree: ast.AST) -> Iterator[ast.expr]:
    """The longest `name.attribute.attribute` at each place that is read, annotations left aside."""
    for name, child in ast.iter_fields(tree):
        if name in ("annotation", "returns"):
            continue
        for node in child if isinstance(child, list) else [child]:
            if isinstance(node, ast.Name | ast.Attribute) and _base_is_name(node):
                if isinstance(node.ctx, ast.Load) or isinstance(node, ast.Attribute):
                    yield node
            elif isinstance(node, ast.AST):
                yield from _loads(node)


def _base_is_name(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _without_annotations(text: str, tree: ast.FunctionDef) -> Iterator[_Edit]:
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    defaults = _defaults(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation:
            start = (node.lineno, node.col_offset + len(node.arg.encode()))
            default = defaults.get(node.arg)
            if default is None:
                yield _Edit(start, _end(node.annotation), "")
            else:
                yield _Edit(start, (default.lineno, default.col_offset), "=")
        elif isinstance(node, ast.FunctionDef) and node.returns:
            line = lines[node.returns.lineno - 1]
            arrow = line.rindex(b"->", 0, node.returns.col_offset)
            start = (node.returns.lineno, len(line[:arrow].rstrip()))
            yield _Edit(start, _end(node.returns), "")
        elif isinstance(node, ast.AnnAssign) and node.value:
            yield _Edit(_end(node.target), _end(node.annotation), "")


def _defaults(tree: ast.FunctionDef) -> dict[str, ast.expr]:
    """The defaults of a function's parameters, by name."""
    given = tree.args
    last = [*given.posonlyargs, *given.args][::-1]
    pairs = [*zip(last, given.defaults[::-1], strict=False), *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return {argument.arg: default for argument, default in pairs if default is not None}


def _end(node: ast.expr) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _edited(text: str, edits: list[_Edit]) -> str:
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    content = text.encode()
    for edit in sorted(edits, key=lambda one: one.start, reverse=True):
        first, last = (starts[line - 1] + column for line, column in (edit.start, edit.end))
        content = content[:first] + edit.text.encode() + content[last:]
    return content.decode()


def _tidy(text: str) -> str:
    """Without what only our tools read, and without an empty line where a body begins."""
    lines = [line.removesuffix("  # fmt: skip").removesuffix("  # noqa: E731") for line in text.rstrip().splitlines()]
    kept = [line for n, line in enumerate(lines) if line or not lines[n - 1].endswith((":", '"""')) or n == 0]
    return "\n".join(kept)
