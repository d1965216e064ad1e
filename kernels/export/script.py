"""A run as one Python script: the kernel with all that it calls, its tensors, its launch, its check, its time.

The script imports torch, Triton and the standard library. It is made of cells, which a notebook has too. On a machine
without a GPU, Triton's interpreter checks, and nothing is timed.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import textwrap
import urllib.parse
from dataclasses import dataclass

from kernels import discover
from kernels.experiment import Experiment
from kernels.export import standalone
from kernels.export.described import Described, described, fields, literal
from kernels.export.inlined import Inlined
from kernels.gpus import Gpu
from kernels.operands import values
from kernels.spec import DTYPE_BYTES, Allowance, Kernel, Launch, Rounding

# Names of the script itself.
_TAKEN = {"problem", "config", "inputs", "output", "launch", "grid", "generator", "allowed", "dtype", "passed"}

_SETUP = '''\
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported and when a kernel is defined
{triton}
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"'''

NEEDS_GPU = "{dtype} needs a GPU: Triton's interpreter does not compute with it. Nothing was checked."

_REFUSAL = f"""
if INTERPRETED:
    # It holds this type as raw integers (Triton 3.6 and 3.7.1): it multiplies those, and truncates where a GPU rounds.
    sys.exit("{NEEDS_GPU}")"""


@dataclass(frozen=True)
class Cell:
    """A piece of the script: what it is for, and its code."""

    title: str
    code: str


@dataclass(frozen=True)
class Script:
    """A run, ready to be written.

    Attributes:
        name: of the file, without its ending.
        about: what it is, line by line.
    """

    name: str
    about: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def text(self) -> str:
        """The script. Editors that know percent cells show its cells."""
        about = "\n".join(
            textwrap.fill(line, 118, break_long_words=False, break_on_hyphens=False) for line in self.about
        )
        cells = "\n\n".join(f"# %% {cell.title}\n{cell.code}" for cell in self.cells)
        return f'"""{about}\n"""\n\n{cells}\n'


def script(experiment: Experiment, gpu: Gpu) -> Script:
    """The script of an experiment.

    Args:
        gpu: the one that the launch is for: persistent kernels have a program per SM of it.

    Raises:
        CannotBeWritten: where the kernel declares what can't be written down.
    """
    kernel = discover()[experiment.kernel]
    family, run, problem = kernel.family, experiment.run, experiment.problem
    launch = Launch(problem, experiment.config, gpu)
    say, code = described(kernel, launch), Inlined(taken=set(_TAKEN))
    (jitted,), kernel_texts = code.added(kernel.jitted)
    (made,), values_texts = code.added(values)
    (right, reference, *scale), check_texts = code.added(
        standalone.is_right, family.reference, *filter(None, [family.error_scale])
    )
    (library, times, told), time_texts = code.added(family.baseline, standalone.times_ms, standalone.told)
    check = f"{right}(output, inputs, {reference}, {scale[0] if scale else None}, allowed)"
    cells = (
        Cell("Setup", _setup(kernel, code, say, problem.dtype)),
        Cell("Problem and config", _declared(experiment)),
        Cell("Kernel", _apart(kernel_texts)),
        Cell("Tensors", _apart([*values_texts, _tensors(kernel, say, made, run.distribution, run.seed)])),
        Cell("Launch", _launch(say, jitted, gpu)),
        Cell("Check", _apart([*check_texts, _check(kernel, launch, run.distribution, check)])),
        Cell("Time", _apart([*time_texts, _time(kernel, experiment, say, library, times, told)])),
    )
    return Script(f"{kernel.id.replace('.', '_')}_{_shape(problem)}", _about(kernel, launch, experiment), cells)


def _about(kernel: Kernel, launch: Launch, experiment: Experiment) -> tuple[str, ...]:
    doc = (sys.modules[kernel.jitted.fn.__module__].__doc__ or kernel.title).strip().splitlines()[0]
    notes = [kernel.note(launch), kernel.family.note(launch.problem)]
    if race := kernel.race(launch):
        notes.append(f"A data race: {race}. On a GPU the check is expected to fail.")
    return (
        f"{kernel.id}: {doc}",
        "",
        kernel.claim,
        *filter(None, notes),
        "",
        f"Exported from Tilescope for {launch.gpu.name}. It needs torch and Triton alone.",
        "On a GPU: checked against torch, then timed beside torch's call. Without one: checked by Triton's "
        "interpreter, and not timed.",
        "",
        f"On the page: ?{urllib.parse.urlencode(experiment.to_address())}",
    )


def _setup(kernel: Kernel, code: Inlined, say: Described, dtype: str) -> str:
    plain = sorted({*code.imports, "import os", "import sys"} - {"import torch"})
    triton = sorted(
        {one for one in plain if "triton" in one.split()[1]} | {"import triton", "import triton.language as tl"}
    )
    if say.descriptors:
        triton.append("from triton.tools.tensor_descriptor import TensorDescriptor")
    standard = sorted(
        {one for one in plain if one not in triton} | {"from types import SimpleNamespace"},
        key=lambda one: (one.startswith("from"), one),
    )
    text = "\n".join([*standard, "", "import torch", "", _SETUP.format(triton="\n" + "\n".join(triton) + "\n")])
    return text + (_REFUSAL.format(dtype=dtype) if computes_raw_integers(kernel, dtype) else "")


def computes_raw_integers(kernel: Kernel, dtype: str) -> bool:
    """Whether the interpreter as it comes would compute something else than a GPU: types that it holds as integers.

    Kernels whose output must equal the reference only move their elements.
    """
    return not kernel.family.is_exact and (dtype == "bfloat16" or DTYPE_BYTES[dtype] == 1)


def _declared(experiment: Experiment) -> str:
    lines = [
        f"problem = SimpleNamespace({fields(experiment.problem)})",
        f"config = SimpleNamespace({fields(experiment.config)})",
        f"dtype = torch.{experiment.problem.dtype}",
    ]
    return "\n".join(lines)


def _tensors(kernel: Kernel, say: Described, made: str, distribution: str, seed: int) -> str:
    drawn = [
        f'    "{name}": {made}("{distribution}", {stored}, generator, DEVICE).to(dtype){".t()" if transposed else ""},'
        for name, stored, transposed in say.inputs
    ]
    name, shape = say.output
    start = (
        ("0.0", "zeros: the kernel adds to it") if kernel.zeroed_output
        else ('float("nan")', "NaN: an element that is not written fails the check")
    )  # fmt: skip
    return "\n".join(
        [
            f"generator = torch.Generator(DEVICE).manual_seed({seed})",
            "inputs = {",
            *drawn,
            "}",
            f"# {name}, filled with {start[1]}.",
            f"output = torch.empty({shape}, dtype=dtype, device=DEVICE).fill_({start[0]})",
        ]
    )


def _launch(say: Described, jitted: str, gpu: Gpu) -> str:
    note = f"  # for this problem and config, on {gpu.name}" if say.grid_is_fixed else ""
    arguments = "\n".join(f"        {name}={text}," for name, text in say.arguments.items())
    return (
        f"grid = {say.grid}{note}\n\n\ndef launch():\n    return {jitted}[grid](\n{arguments}\n    )\n\n\n"
        "launch()\nif not INTERPRETED:\n    torch.cuda.synchronize()"
    )


def _check(kernel: Kernel, launch: Launch, distribution: str, call: str) -> str:
    fails = 'if not passed:\n    sys.exit("The result is wrong, so it was not timed.")'
    return f"{_allowed(kernel, launch, distribution)}\npassed = {call}\n{fails}"


def _allowed(kernel: Kernel, launch: Launch, distribution: str) -> str:
    """What rounding explains here, on a GPU and under the interpreter, which multiplies float32 in full."""
    family = kernel.family
    if family.allowance is None:
        return "allowed = None"
    roundings = kernel.roundings(launch)
    gpu, cpu = (
        family.allowance(Rounding(launch, roundings, distribution, interpreted)) for interpreted in (False, True)
    )
    lines = [
        f"# What rounding explains of an error, in parts of |reference| and of {family.magnitude}.",
        f"# At most, and on average. It follows from {family.limit_follows}.",
        _assigned(gpu),
    ]
    if cpu != gpu:
        lines += ["if INTERPRETED:", textwrap.indent(_assigned(cpu), "    ")]
    return "\n".join(lines)


def _assigned(allowance: Allowance) -> str:
    given = "".join(f"    {name}={literal(value)},\n" for name, value in dataclasses.asdict(allowance).items())
    return f"allowed = SimpleNamespace(\n{given})"


def _time(kernel: Kernel, experiment: Experiment, say: Described, library: str, times: str, told: str) -> str:
    problem, is_cold = experiment.problem, experiment.run.l2 == "cold"
    rate = f"{say.work or 0}, {kernel.family.minimal_bytes(problem)}"
    return f'''\
if INTERPRETED:
    print("Not timed: Triton's interpreter ran the kernel on the CPU.")
else:
    theirs = {library}(inputs, torch.empty_like(output), problem)
    calls = [launch] if isinstance(theirs, str) else [launch, theirs]
    ours, *others = {times}(calls, is_cold={is_cold})
    print({told}("{kernel.id}", ours, {rate}))
    for other in others:
        print({told}("{kernel.family.baseline_name(problem)}", other, {rate}))
        paired = [theirs_ms / ours_ms for ours_ms, theirs_ms in zip(ours, other, strict=True)]
        print(f"speed relative to it: {{statistics.median(paired):.3f}}, the median over pairs")
    if not others:
        print(f"No library call to compare with: {{theirs}}")'''


def _shape(problem: object) -> str:
    sizes = "x".join(str(value) for value in vars(problem).values() if type(value) is int)
    return f"{sizes}_{vars(problem)['dtype']}"


def _apart(texts: list[str]) -> str:
    """Functions and statements, two lines apart, and constants one below the other."""
    parts = [texts[0]]
    for before, text in itertools.pairwise(texts):
        is_short = "\n" not in before and "\n" not in text
        parts.append(f"{'' if is_short else chr(10) * 2}{text}")
    return "\n".join(parts)
