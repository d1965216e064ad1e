"""Run a script, notebook or module as `__main__`, and its cases."""

import ast
import asyncio
import contextlib
import functools
import inspect
import itertools
import json
import linecache
import os
import re
import runpy
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from . import Values
from .recorder import HostRead, Recorder, UsageError
from .tracebacks import summarize
from .without_gpu import Stub

# Maximum number of combinations in a sweep.
_MOST_COMBINATIONS = 256

# IPython's syntax: a cell in another language; a magic or shell command with its continuation lines, or a question
# about a name; a magic that times a statement.
_OTHER_LANGUAGE = re.compile(r"\s*(%%(?!(?:time|timeit|capture|prun)\b).*)")
_MAGIC = re.compile(
    r"^(?P<indent>[ \t]*)(?:(?P<target>\w[\w., \t]*=[ \t]*)?(?P<magic>[%!](?:.*\\\n)*.*)"
    r"|(?:\?{1,2}[\w.]+|[\w.]+\?{1,2})[ \t]*$)",
    re.MULTILINE,
)
_TIMED = re.compile(
    r"%%?time(?:it)?\b(?:[ \t]+-(?:[nrp][ \t]*\d+|[tcqo]+))*[ \t]*(?P<statement>.*)", re.DOTALL
)


def split_case(target: str) -> tuple[str, str]:
    """Split off the name of a case. The name of a script may contain colons, too."""
    name, colon, case = target.rpartition(":")
    return (name, case) if colon and not Path(target).is_file() else (target, "")


def _parse_settings(settings: Iterable[str], case: str, defaults: Values) -> dict[str, list[Any]]:
    """Return the values of the parameters that `--set` changes, with the type of their defaults."""
    result = {}
    for setting in settings:
        name, _, texts = setting.partition("=")
        if name not in defaults:
            allowed = ", ".join(defaults) or "none"
            raise UsageError(
                f"--set {setting}: {case} has no parameter {name!r}. It has {allowed}."
            )
        default = defaults[name]
        kind = type(default)
        values: list[Any] = texts.split(",")
        if kind is not str:
            with contextlib.suppress(ValueError, SyntaxError):
                values = [
                    ast.literal_eval(text.capitalize() if kind is bool else text) for text in values
                ]
        if any(type(value) is not kind for value in values):
            allowed = f"a value of type {kind.__name__}, such as {default!r}"
            raise UsageError(f"--set {setting}: {name} must be {allowed}.")
        result[name] = values
    return result


def _run_case(recorder: Recorder, name: str, function: Any, settings: Values) -> None:
    """Launch a case. If it ran, compare its outputs with the expected ones and, on a GPU, time it."""
    recorder.context = {"case": name, "tuned": None, "settings": settings}
    count = len(recorder.launches)
    returned = function(**settings)
    parts = returned if isinstance(returned, tuple) else ()
    is_launch = (
        3 <= len(parts) <= 4
        and hasattr(parts[0], "run")
        and all(isinstance(p, dict) for p in parts[2:])
    )
    if not (is_launch and set(parts[-1]) <= set(parts[2])):
        if len(recorder.launches) == count:
            raise UsageError(
                f"{name} must launch a kernel, or return (kernel, grid, arguments) or (kernel, grid, arguments, "
                "expected), where expected maps argument names to expected results."
            )
        return
    kernel, grid, keywords, *expected = parts
    code = inspect.unwrap(function).__code__
    recorder.context["caller"] = {"file": code.co_filename, "line": code.co_firstlineno}
    kernel[grid](**keywords)
    if len(recorder.launches) == count:
        return  # the grid is empty
    launch = recorder.launches[-1]
    if expected and launch.content["ran"]:
        results = {
            output: compare(keywords[output], result) for output, result in expected[0].items()
        }
        recorder.keep(launch, results=results)
    if launch.content["ran"] == "cuda" and recorder.is_timed:
        call = functools.partial(kernel[grid], **keywords)
        with recorder.paused():
            recorder.keep(launch, elapsed_ms=triton.testing.do_bench(call, return_mode="median"))


def _run_sweep(
    recorder: Recorder, name: str, function: Any, values: Mapping[str, Sequence[Any]]
) -> None:
    """Launch a case for each combination of its parameters' values. Failures are listed in `not_captured`."""
    combinations = [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]
    if len(combinations) > _MOST_COMBINATIONS:
        raise UsageError(
            f"--set gives {len(combinations):,} combinations; at most {_MOST_COMBINATIONS} are run."
        )
    for settings in combinations:
        try:
            _run_case(recorder, name, function, settings)
        except Exception as error:
            if len(combinations) == 1:
                raise
            chosen = " ".join(f"{parameter}={value}" for parameter, value in settings.items())
            recorder.note(f"{chosen}: {summarize(error)}")


def compare(result: torch.Tensor, reference: torch.Tensor) -> Values:
    """Return the errors of an output. It passes if its relative RMS error is at most 8 × its dtype's epsilon."""
    difference = result.double() - reference.double()
    scale = float(reference.double().square().mean().sqrt()) or 1.0
    rms = float(difference.square().mean().sqrt()) / scale
    most = float(difference.abs().max())
    epsilon = torch.finfo(result.dtype).eps if result.dtype.is_floating_point else 0.0
    return {"relative_rms": rms, "max_abs_error": most, "passed": rms <= 8 * epsilon}


def read_program(
    recorder: Recorder, target: str, is_module: bool
) -> tuple[list[types.CodeType], Values]:
    """Compile a script, a notebook or a module, and put its folder on the path, as Python does.

    Return the code objects, in order, and the module's attributes.
    """
    path = Path(target).resolve()
    if not (is_module or path.is_file()):
        raise UsageError(f"There is no script {target}.")
    if not sys.flags.safe_path:
        sys.path.insert(0, str(Path.cwd() if is_module else path.parent))
    try:
        if is_module:
            _, spec, code = runpy._get_module_details(target, UsageError)  # type: ignore[attr-defined]
            names = {"__package__": spec.parent, "__loader__": spec.loader}
            return [code], {"__spec__": spec, "__file__": spec.origin, **names}
        if path.suffix == ".ipynb":

            def get_ipython() -> Stub:
                recorder.note("Calls of get_ipython's methods did nothing.")
                return Stub()

            attributes = {"display": print, "get_ipython": get_ipython}
            return _compile_cells(recorder, path), attributes
        name = os.fsencode(path).decode(errors="replace")  # Triton needs UTF-8
        linecache.cache[name] = 0, None, linecache.getlines(str(path)), name
        code = compile(path.read_bytes(), name, "exec")
        return [code], {"__file__": str(path)}
    except UsageError:
        raise UsageError(f"There is no module {target} that `python -m` can run.") from None
    except (SyntaxError, ValueError, RecursionError) as error:
        is_notebook = path.suffix == ".ipynb" and not isinstance(error, SyntaxError)
        kind = "a notebook" if is_notebook else "Python"
        raise UsageError(f"{target} is not {kind}: {error}.") from None


def _compile_cells(recorder: Recorder, path: Path) -> list[types.CodeType]:
    """Compile a notebook's code cells. A cell's file name is the notebook's with the number that Jupyter gives it."""
    codes = list[types.CodeType]()
    notebook = json.loads(path.read_bytes())
    try:
        cells = [
            (cell.get("cell_type"), "".join(cell.get("source", ""))) for cell in notebook["cells"]
        ]
    except (AttributeError, KeyError, TypeError):
        raise ValueError("it has no cells with a source") from None
    for kind, text in cells:
        if kind == "code" and text.strip():
            codes.append(_compile_cell(recorder, text, f"{path}[{len(codes) + 1}]"))
    return codes


def _compile_cell(recorder: Recorder, text: str, name: str) -> types.CodeType:
    compile_cell = functools.partial(
        compile, filename=name, mode="exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    try:
        code = compile_cell(text)
    except SyntaxError:
        text = _translate_magics(recorder, text)
        try:
            code = compile_cell(text)
        except SyntaxError as error:
            place = f"{Path(name).name}, line {error.lineno}"
            recorder.note(f"A cell that is not Python was skipped: {error.msg} ({place})")
            text = ""
            code = compile_cell(text)
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    return code


def _translate_magics(recorder: Recorder, text: str) -> str:
    """Return a cell without IPython's syntax, but with the statements that it times. Lines keep their numbers."""

    def translate(match: re.Match[str]) -> str:
        indent, target, magic = match.group("indent", "target", "magic")
        timed = _TIMED.match(magic or "")
        if timed and timed["statement"]:
            return f"{indent}{target or ''}{timed['statement']}"
        skipped = " ".join(match[0].replace("\\\n", " ").split())
        recorder.note(f"An IPython magic was skipped: {skipped}")
        return f"{indent}{f'{target}None' if target else 'pass'}" + "\n" * match[0].count("\n")

    if language := _OTHER_LANGUAGE.match(text):
        recorder.note(f"An IPython magic was skipped: {language[1]}")
        return ""
    return _MAGIC.sub(translate, text)


def _read_defaults(function: Any) -> Values:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def run_program(
    recorder: Recorder,
    codes: Sequence[types.CodeType],
    attributes: Values,
    title: str,
    case: str,
    settings: Sequence[str],
) -> None:
    """Run code as `__main__`, then the named case, or all cases if the code launched nothing.

    Args:
        attributes: of the module.
    """
    module = types.ModuleType("__main__")
    names = module.__dict__
    names.update(attributes)
    ended = None
    sys.modules["__main__"] = module
    try:
        for code in codes:
            awaited = eval(code, names)
            if code.co_flags & inspect.CO_COROUTINE:  # a cell with `await`
                asyncio.run(awaited)
    except (HostRead, SystemExit) as error:
        ended = error
    finally:
        recorder.write("about", inspect.cleandoc(names["__doc__"] or ""))
    cases = {
        name: value
        for name, value in names.items()
        if name.startswith("case") and inspect.isfunction(value)
    }
    defaults = {name: _read_defaults(function) for name, function in cases.items()}
    plain = {
        name: {k: v for k, v in own.items() if isinstance(v, int | float | str)}
        for name, own in defaults.items()
    }
    recorder.write("cases", plain)
    if case and case not in cases:
        if isinstance(ended, HostRead) and any(case in code.co_names for code in codes):
            raise ended
        allowed = "It has no function whose name begins with `case`."
        if cases:
            allowed = f"Its cases: {', '.join(cases)}."
        raise UsageError(f"{title} has no case {case!r}. {allowed}")
    chosen = [case] if case else [] if recorder.launches else list(cases)
    if settings and len(chosen) != 1:
        raise UsageError("--set changes the parameters of one case: name it, as in script.py:case.")
    if ended and (not chosen or getattr(ended, "code", None)):
        raise ended
    if case:
        recorder.drop(0)
    for name in chosen:
        _run_sweep(recorder, name, cases[name], _parse_settings(settings, name, defaults[name]))
