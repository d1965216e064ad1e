"""Exported scripts run without our modules and check as the runner does; Chrome traces have each program once."""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from scripts.run_exports import shipped_experiments
from tests.conftest import FEW_SMS, accepted, configs_of, problem_for
from tests.experiments import experiment_of
from tests.waiting import PATIENCE_S, until
from tilescope import export
from tilescope.declare import numerics
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment, Run, launch_of
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from tilescope.export import CannotBeWritten, Sources
from tilescope.measure.timeline import TIMELINE
from tilescope.results import records
from visualize.views.order.figures import chrome_trace

SHAPE = (80, 96, 64)
ODD = (37, 45, 29)
NORMAL = Run()

# Runs each script as a main program and reports how it ended.
DRIVER = """
import contextlib, importlib.util, io, json, os, runpy, sys
assert not any(importlib.util.find_spec(name) for name in ("kernels", "visualize", "app", "tests"))
ends = {}
for path in sys.argv[1:]:
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            runpy.run_path(path, run_name="__main__")
        ends[path] = [0, output.getvalue()]
    except SystemExit as end:
        ends[path] = [1 if isinstance(end.code, str) else end.code, output.getvalue() + str(end.code)]
    except Exception as error:
        ends[path] = [2, output.getvalue() + repr(error)]
print(json.dumps(ends), flush=True)
os._exit(0)  # at torch's end, one of its threads may still run, which aborts the process
"""


def run_scripts(tmp_path, texts):
    """Run scripts by name in an empty folder, without our modules. Return each script's exit status and output."""
    (tmp_path / "empty").mkdir()
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    kept = {
        name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ
    }
    environment = {**kept, "HOME": str(tmp_path), "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    paths = [str(tmp_path / f"{name}.py") for name in texts]
    command = [sys.executable, "-I", "-W", "error", "-c", DRIVER, *paths]
    run = subprocess.run(
        command,
        cwd=tmp_path / "empty",
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert run.returncode == 0, run.stderr
    return dict(zip(texts, map(tuple, json.loads(run.stdout).values()), strict=True))


def write_script(kernel, shape=SHAPE, config=None, gpu=FEW_SMS, run=NORMAL, **others):
    problem = problem_for(kernel, shape, **{"dtype": "float32", **others})
    return export.script(
        Experiment(kernel.id, problem, config or kernel.config(), run=run), gpu
    ).text


def dtypes(kernel, all_combinations):
    """Return every dtype, or one per kernel in rotation: all kernels of a family write a dtype in the same way."""
    choices, place = kernel.problem_knobs()["dtype"].choices, list(discover()).index(kernel.id)
    return choices if all_combinations else [choices[place % len(choices)]]


def cases(kernel, all_combinations):
    """Return scripts by name: dtypes, shapes that no block divides, an old GPU; layouts and precisions in rotation."""
    fields, place = kernel.problem_knobs(), list(discover()).index(kernel.id)
    found = {f"dtype_{dtype}": {"dtype": dtype} for dtype in dtypes(kernel, all_combinations)}
    if "layout" in fields:
        found["layout"] = {"layout": ("NT", "TN", "TT")[place % 3], "dtype": "float16"}
        found["precision"] = {"precision": ("ieee", "tf32_rounded", "tf32x3")[place % 3]}
    found["odd"] = {"shape": ODD, "run": Run("integers", seed=7, l2="cold")}
    found["old_gpu"] = {"gpu": GPUS["A100-80GB"], "run": Run("uniform", timer="graph")}
    if hasattr(kernel.config(), "PAD"):
        found["padded"] = {"shape": ODD, "config": kernel.config(PAD="always"), "dtype": "float16"}
    unequal, problem = configs_of(kernel)["unequal"], problem_for(kernel, ODD)
    if (
        accepted(kernel, problem, unequal)
        and kernel.programs(Launch(problem, unequal, FEW_SMS)) <= 64
    ):
        found["unequal"] = {"shape": ODD, "config": unequal, "dtype": "float16"}
    return {name: write_script(kernel, **given) for name, given in found.items()}


@pytest.fixture(scope="module")
def ended(tmp_path_factory, all_combinations):
    """Run all kernels' scripts in one process: importing torch takes longer than they do."""
    texts = {
        f"{kernel.id}-{name}": text
        for kernel in discover().values()
        for name, text in cases(kernel, all_combinations).items()
    }
    return run_scripts(tmp_path_factory.mktemp("scripts"), texts | edited() | planted())


# The sizes of large scripts are edited to these.
EDITED = (
    {"M": 128, "N": 128, "K": 128},
    {"M": 99, "N": 151, "K": 77},
    {"M": 0},
    {"dtype": "int8"},
)


def edited():
    """Return large scripts whose problem a user has edited."""
    texts = {}
    for name, kernel in discover().items():
        text = write_script(kernel, (2048, 2048, 2048), gpu=GPUS["H200"], dtype="float16")
        for number, fields in enumerate(EDITED):
            changed = text
            for field, value in fields.items():
                changed = re.sub(
                    rf"(?m)^(problem = .*\b{field}=)[^,)]+", rf"\g<1>{value!r}", changed
                )
            texts[f"edited-{number}-{name}"] = changed
    return texts


def planted():
    """Return scripts with a wrong result: one element, all of it, a formula."""
    launched, start = "        launch()\n    finally:\n", "return index * BLOCK\n"
    texts = {}
    for name in ("matmul.grouped", "transpose.tiled"):
        text = write_script(discover()[name])
        for wrong, old, new in (
            ("element", "# %% Check\n", "output[3, 5] += 1\n"),
            ("nothing", launched, launched.replace("launch()", "pass")),
            ("formula", start, "return index * BLOCK + 1\n"),
        ):
            assert text.count(old) == 1
            texts[f"wrong-{name}-{wrong}"] = text.replace(old, new)
    return texts


@pytest.mark.xdist_group("exported scripts")
def test_a_script_runs_without_our_modules(kernel, ended):
    """Each kernel's scripts pass their check under the interpreter, or say that they need a GPU."""
    mine = {
        name.partition("-")[2]: end
        for name, end in ended.items()
        if name.startswith(f"{kernel.id}-")
    }
    assert {"odd", "old_gpu"} <= set(mine)
    for name, (code, output) in mine.items():
        dtype = name.removeprefix("dtype_")
        if not kernel.family.is_exact and dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            assert (code, output) == (1, export.NEEDS_GPU.format(dtype=dtype)), name
        else:
            assert code == 0, (name, output)
            assert "Triton's interpreter takes about 1 s for " in output, (name, output)
            assert "\ncheck passed: 0 of" in output, (name, output)
            is_race = kernel.id == "matmul.split_k_race"
            assert ("it is still a race: " in output) == is_race, (name, output)
            assert "Not timed" in output, name


@pytest.mark.xdist_group("exported scripts")
@pytest.mark.parametrize("number", range(len(EDITED)))
def test_a_script_with_an_edited_problem_is_right_or_says_what_it_needs(kernel, ended, number):
    """The limit on the error follows the sizes. A launch that is written in numbers accepts no other sizes."""
    code, output = ended[f"edited-{number}-{kernel.id}"]
    (field, value), *_ = EDITED[number].items()
    refusal = "{} must be {} in this script (got {}). Export another script for other values."
    if field == "dtype":
        assert (code, output) == (1, refusal.format("dtype", "float16", value))
    elif kernel.id in ("matmul.persistent", "matmul.fused_add_relu", "matmul.stream_k"):
        assert (code, output) == (1, refusal.format("M", 2048, value))
    elif value == 0:
        assert (code, output) == (1, "M must be at least 1 (got 0).")
    else:
        assert code == 0, output
        assert "\ncheck passed: 0 of" in output


@pytest.mark.xdist_group("exported scripts")
def test_a_wrong_result_ends_in_an_error(ended):
    wrong = {name: end for name, end in ended.items() if name.startswith("wrong-")}
    assert set(wrong) == set(planted())
    for name, (code, output) in wrong.items():
        assert code == 1, (name, output)
        counted = int(re.search(r"check FAILED: ([\d,]+) of", output)[1].replace(",", ""))
        least, most = {"element": (1, 1), "nothing": (7680, 7680), "formula": (80, 7680)}[
            name.rpartition("-")[2]
        ]
        assert least <= counted <= most, (name, output)
        assert "so it was not timed" in output


def test_a_script_imports_only_torch_triton_and_the_standard_library(kernel):
    """Only an accumulating kernel's output starts at zero."""
    text = write_script(kernel)
    assert (".fill_(0.0)" in text) == kernel.zeroed_output
    names = re.findall(r"^\s*(?:import|from) ([\w.]+)", text, re.MULTILINE)
    assert {"torch", "triton"} <= set(names)
    assert all(
        name.split(".")[0] in {"torch", "triton", *sys.stdlib_module_names} for name in names
    )


def test_a_script_has_the_values_of_its_experiment():
    fields = "matmul.grouped M=96 N=80 K=64 layout=TN BLOCK_M=32 GROUP_SIZE=2 num_warps=8"
    experiment = experiment_of(f"{fields} seed=11 distribution=uniform l2=cold")
    text = export.script(experiment, GPUS["H200"]).text
    for part in (
        "problem = SimpleNamespace(M=96, N=80, K=64, dtype='float16', layout='TN', precision='tf32')",
        "BLOCK_M=32, BLOCK_N=128, BLOCK_K=32, GROUP_SIZE=2, num_warps=8",
        '"A": values("uniform", (problem.K, problem.M), generator, DEVICE).to(dtype).t(),',
        '"B": values("uniform", (problem.K, problem.N), generator, DEVICE).to(dtype),',
        "manual_seed(11)",
        "is_cold=True",
        'fill_(float("nan"))',
        "    grid = (-(-problem.M // config.BLOCK_M) * -(-problem.N // config.BLOCK_N),)",
        'a_strides=(1, inputs["A"].stride(1)),',
        "num_warps=config.num_warps,",
    ):
        assert part in text, part


def test_every_shipped_config_exports_a_script(all_combinations):
    """Every default, preset and recommended config, or one in three."""
    shipped = list(shipped_experiments(GPUS["H200"]))
    assert len(shipped) >= 112
    for experiment in shipped if all_combinations else shipped[::3]:
        compile(export.script(experiment, GPUS["H200"]).text, experiment.kernel, "exec")


def test_a_declaration_may_do_any_arithmetic():
    """A result that is not an expression of integers is written as a number, and all values are fixed."""
    kernel = discover()["transpose.tiled"]

    def grid(launch):
        rows, columns = launch.problem.M, launch.problem.N
        terms = 0.5 * rows, rows // 2.0, columns / 3, 2**-columns, 7 - rows * 1.5, columns % 7
        whole = round(columns / 3), abs(-rows), len([0] * columns), divmod(9, rows)[1]
        return (max(1, math.ceil(sum(terms)) + sum(whole)),)

    launch = Launch(problem_for(kernel, SHAPE), kernel.config(), FEW_SMS)
    code = export.launch_code(replace(kernel, grid=grid), launch)
    assert code["grid"] == grid(launch)
    assert code["fixed"] == {**vars(launch.problem), **vars(launch.config)}


@pytest.mark.parametrize("start", [float("nan"), 0.0])
def test_a_long_interpreted_launch_reports_how_much_is_written(capsys, start):
    output = torch.full((100, 101), start)

    def launch():
        until(lambda: " s: 0.0% of the output has been written\n" in capsys.readouterr().out)
        output[:50] = 1.0
        until(lambda: " s: 50.0% of the output has been written\n" in capsys.readouterr().out)

    numerics.interpret(launch, output, every_s=0.01)


@pytest.mark.parametrize("shape", [SHAPE, ODD, (577, 129, 1000)])
def test_the_grid_that_is_written_holds_for_other_shapes(kernel, shape):
    code = export.launch_code(kernel, Launch(problem_for(kernel, SHAPE), kernel.config(), FEW_SMS))
    launch = Launch(problem_for(kernel, shape), kernel.config(), FEW_SMS)
    names = {"problem": launch.problem, "config": launch.config}
    if "M" not in code["fixed"]:
        assert eval(repr(code["grid"]), names) == kernel.grid(launch)
        assert eval(repr(code["work"]), names) == kernel.family.work(launch.problem)
        assert eval(repr(code["partial_sums"]), names) == kernel.roundings(launch)


def test_a_notebook_has_the_cells_of_the_script(kernel):
    """It also has the fields that nbformat 4.5 requires."""
    experiment = Experiment(kernel.id, problem_for(kernel, SHAPE), kernel.config())
    written = export.script(experiment, GPUS["H200"])
    made = json.loads(json.dumps(written.notebook()))
    assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in made["cells"]]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    code = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert ["".join(cell["source"]) for cell in code] == list(written.cells.values())
    assert all(f"# %% {title}\n{code}\n" in written.text for title, code in written.cells.items())


def helper(x):
    return x + OFFSET


class Interval(NamedTuple):
    low: int
    high: int = 9


OFFSET = 3
OBJECT = object()


def shifted(value: Experiment, by: int = OFFSET) -> Interval:
    """Says «×» before it counts."""
    total = this_module.helper(value)  # a comment stays

    def low() -> int:
        return math.floor(total) + by

    return Interval(low())


this_module = sys.modules[__name__]


def test_a_function_is_copied_with_everything_that_it_names():
    """Functions, classes and constants precede their users, also those that only defaults or inner functions name."""
    sources = Sources()
    text = sources.copy(shifted)
    assert sources.imports == {"import math", "from typing import NamedTuple"}
    firsts = re.findall(r"^(?:OFFSET = 3|(?:def|class) \w+)", text, re.MULTILINE)
    assert firsts == ["OFFSET = 3", "def helper", "class Interval", "def shifted"]
    assert "    total = helper(value)  # a comment stays\n" in text
    space = {"__name__": __name__}
    exec("\n".join(["from __future__ import annotations", *sources.imports, text]), space)
    assert space["shifted"](4) == shifted(4) == (10, 9)
    assert sources.copy(helper) == "", "an earlier call has returned it"


def uses_an_object():
    return OBJECT


def uses_its_own_module():
    from tests import products

    return products


def hides_a_function():
    helper = this_module.helper(1)
    return helper


def is_nested(value):
    def inner():
        return value

    return inner


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x, "not defined by a `def`"),
        (uses_an_object, "can't contain OBJECT, of type object"),
        (uses_its_own_module, "imports tests inside its body"),
        (hides_a_function, "this_module.helper and a variable helper"),
        (is_nested(1), "value, which is not global"),
        (helper, "Two definitions share the name OFFSET"),
    ],
)
def test_a_function_that_a_script_cannot_contain_is_refused(function, why):
    with pytest.raises(CannotBeWritten, match=why):
        Sources({"OFFSET"}).copy(function)


def test_an_argument_that_cannot_be_written_is_refused():
    kernel = discover()["transpose.tiled"]
    odd = replace(kernel, arguments=lambda tensors, launch: {"num_warps": SimpleNamespace()})
    with pytest.raises(CannotBeWritten, match="num_warps is a SimpleNamespace"):
        export.launch_code(odd, Launch(problem_for(kernel, SHAPE), kernel.config(), FEW_SMS))


RECORDED = records.experiments(TIMELINE.form, "H200")


@pytest.mark.parametrize("experiment", RECORDED, ids=str)
def test_every_program_is_an_event_where_and_when_it_ran(experiment):
    timeline = records.find(TIMELINE.form, experiment, "H200")
    trace = json.loads(json.dumps(chrome_trace(timeline, GPUS["H200"]), allow_nan=False))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    kernel, launch = launch_of(experiment, GPUS["H200"])
    assert [event["args"]["program"] for event in events] == list(range(kernel.programs(launch)))
    assert [event["pid"] for event in events] == list(timeline.sm)
    assert [round(event["ts"] * 1000) for event in events] == list(timeline.start_ns)
    assert [round((event["ts"] + event["dur"]) * 1000) for event in events] == list(timeline.end_ns)
    tiles = [tuple(tile.values()) for event in events for tile in event["args"]["tiles"]]
    extents = kernel.extents(launch)
    assert len(set(tiles)) == len(tiles) == extents["m"] * extents["n"] * extents.get("slice", 1)
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert named == {(event["pid"], event["tid"]) for event in events}
    processes = {
        e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"
    }
    assert processes == {sm: f"SM {sm}" for sm in set(timeline.sm)}
    assert trace["otherData"]["source"] == "recorded"
    assert trace["otherData"]["experiment"] == timeline.experiment.to_json()
