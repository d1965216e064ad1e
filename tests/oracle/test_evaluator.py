"""Random kernels: the evaluator counts exactly the requests of the addresses that Triton's interpreter accesses.

As a script: `python tests/oracle/test_evaluator.py FIRST_SEED KERNELS LAUNCHES FOLDER` prints the differences.
"""

import collections
import importlib.util
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
# Each kernel is compiled once, and launched several times with other numbers, grids and index values.
KERNELS, LAUNCHES, PROCESSES = 32, 8, 2
# Bytes of each tensor, and of the address space around it; number of values that addresses may depend on.
TENSOR_BYTES, REGION, INDICES = 1 << 14, 1 << 28, 500
DTYPES = ("int32", "int64", "float16", "float32")
ATOMICS = {"int32": ("add", "max", "xchg", "cas"), "int64": ("add", "max", "cas")}
SHAPES = ((64,), (128,), (512,), (8, 32), (16, 16), (64, 4))
# Operations on a block or scalar {a} with bound A, a second {b} with bound B and a constant {k}: text, and bound.
OPERATIONS = (
    ("{a} + {b}", "A + B"), ("{a} - {b} * 2", "A + 2 * B"), ("{a} * {k}", "A * k"), ("{a} // {k}", "A"),
    ("{a} % ({k} + 1)", "k"), ("{a} // n0", "A"), ("{a} % n1", "3000"), ("({a} % 99) * ({b} % 99)", "9801"),
    ("tl.minimum({a}, {b})", "A + B"), ("tl.maximum({a}, {k})", "A + k"), ("{a} - {k}", "A + k"),
    ("{k} - {a}", "A + k"),
    ("{a} ^ {k}", "2 * A + 256"), ("{a} & {k}", "128"), ("{a} | {k}", "2 * A + 256"), ("{a} >> 2", "A"),
    ("{a} << 2", "4 * A"), ("-{a}", "A"), ("tl.abs({a})", "A"), ("tl.cdiv({a}, {k})", "A"),
    ("{a}.to(tl.int64) + {b}", "A + B"), ("({a} % 99).to(tl.float32).to(tl.int32)", "99"),
    ("tl.where({a} < {b}, {a}, {b})", "A + B"), ("tl.where({a} % {k} == 0, {a}, n0)", "A + 3000"),
)  # fmt: skip
FOLDS = ("cumsum({a} % 16, {axis})", "max({a} % 16, {axis}, keep_dims=True)", "sum({a} % 16, {axis}, keep_dims=True)")
COMPARISONS = ("({a} < {b})", "({a} >= {k})", "({a} % ({k} + 1) != 1)", "({a} < n0)", "({b} > {a})")
MASKS = ("({0})", "({0} & {1})", "(({0} & {1}) | {2})", "({0} & ({1} == 0))", "({3} & {0})")
LOOPS = ("range({}, {}, {})", "tl.range({}, {}, {}, num_stages=3)", "tl.static_range(0, 3)")


class Source:
    """The text of a random kernel. An expression is a pair: its text, and a bound of its absolute value."""

    def __init__(self, number: int) -> None:
        self.random, self.lines, self.loops, self.count = random.Random(number), [], [], 0
        choose = self.random.choice
        self.kinds = [choose(DTYPES), choose((*DTYPES, "int8")), choose(DTYPES), choose(DTYPES[:2])]  # x, y, z, ids
        self.shape, self.pitch = choose(SHAPES), choose((3, 16))  # elements between the operations' addresses
        self.scalars = [("p0", 4), ("p1", 3), ("n0", 3000), ("n1", 3000), ("carried", 509)]
        flat = "rows" if len(self.shape) == 1 else f"(rows * {self.shape[1]} + columns)"
        self.blocks = [(flat, 512), ("moving", 1009), (f"(rows + columns * {self.shape[0]})", 1 << 18)]
        ends = ("", "") if len(self.shape) == 1 else ("[:, None]", "[None, :]")
        axes = [f"tl.arange(0, {size}){end}" for size, end in zip((self.shape[0], self.shape[-1]), ends, strict=True)]
        self.add(
            0, "import triton", "import triton.language as tl", "", "@triton.jit", "def kernel(x, y, z, ids, n0, n1):"
        )
        self.add(1, f"p0, p1, rows, columns = tl.program_id(0), tl.program_id(1), {axes[0]}, {axes[1]}")
        self.add(1, f"carried, moving = p0 + 0, tl.zeros({list(self.shape)}, tl.int32) + rows")
        for _ in range(self.random.randint(2, 5)):
            if self.random.random() < 0.1:
                self.add(1, f"if {self.condition()}:", "    return")
            self.statement(1)

    def add(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def number(self) -> int:
        return self.random.choice((1, 2, 3, 4, 5, 8, 16, 31, 32, 100, 128))

    def expression(self, pool: str = "blocks", depth: int = 2) -> tuple[str, int]:
        if depth == 0 or self.random.random() < 0.2:
            return self.random.choice(getattr(self, pool))
        (a, A), k = self.expression(pool, depth - 1), self.number()
        b, B = self.expression(self.random.choice((pool, "scalars")), depth - 1)
        text, bound = self.random.choice(OPERATIONS)
        if pool == "blocks" and self.random.random() < 0.1:
            text, bound = f"{{a}} + tl.{self.random.choice(FOLDS)}", "A + 16 * 512"
        text = text.format(a=a, b=b, k=k, axis=self.random.randrange(len(self.shape)))
        bound = eval(bound, {"A": A, "B": B, "k": k})
        return (f"(({text}) % 524287)", 524287) if bound > 524287 else (f"({text})", bound)

    def condition(self, pool: str = "scalars") -> str:
        a, b = self.expression(pool, 1)[0], self.expression("scalars", 1)[0]
        return self.random.choice(COMPARISONS).format(a=a, b=b, k=self.number())

    def mask(self) -> str:
        return self.random.choice(MASKS).format(*(self.condition("blocks") for _ in range(3)), self.condition())

    def address(self, pool: str = "blocks") -> str:
        """Return an address that no other operation and no other iteration has, so that no load is moved or merged."""
        self.count += 1
        text, kind = self.expression(pool)[0], self.random.random()
        if pool == "blocks" and kind < 0.5:
            text = self.blocks[0][0] + (
                f" * {self.number()}" if kind < 0.2 else f" + {self.expression('scalars')[0]} * 16"
            )
        return f"{text} + {self.count * self.pitch}" + "".join(f" + {i} * {11 * self.pitch}" for i in self.loops[-1:])

    def statement(self, depth: int) -> None:
        kinds = [self.access] * 4 + [self.gather, self.load_scalar, self.update]
        nested = [self.branch, self.loop] * 2 if depth < 3 and len(self.lines) < 25 else []
        self.random.choice(kinds + nested)(depth)

    def nest(self, depth: int) -> None:
        before = list(self.scalars), list(self.blocks)
        for _ in range(self.random.randint(1, 2)):
            self.statement(depth)
        self.scalars, self.blocks = before

    def access(self, depth: int, extra: str = "") -> None:
        value, mask, choose = self.name("v"), f", mask={self.mask()}", self.random.choice
        mask, other = choose((("", ""), (mask, ", other=1"), (mask, "")))
        self.add(depth, f"{value} = tl.load(x + {self.address()}{extra}{mask}{other})")
        kind, mask = choose(ATOMICS.get(self.kinds[2], ("add",))), choose(("", mask))
        converted, pointer = f"{value}.to(z.dtype.element_ty)", f"z + {self.address()}"
        atomic = f"tl.atomic_{kind}({pointer}, {converted}{mask})"
        atomic = f"tl.atomic_cas({pointer}, {converted}, {converted})" if kind == "cas" else atomic
        total = f"tl.store(y + {self.address('scalars')}, tl.sum({value}).to(y.dtype.element_ty))"
        returned = [f"old = {atomic}", f"tl.store(y + {self.address()}, old{mask})"]
        store = f"tl.store(y + {self.address()}, {value}{mask})"
        self.add(depth, *choose(([store], [store], [total], [atomic], returned)))

    def gather(self, depth: int) -> None:
        name, place = self.name("b"), self.name("i")
        mask = f"({place} >= 0) & ({place} < {INDICES}) & {self.mask()}"
        self.add(depth, f"{place} = {self.address()}", f"{name} = tl.load(ids + {place}, mask={mask}, other=7)")
        self.access(depth, extra=f" + {name} * {self.number()}")
        self.blocks.append((name, 1000))

    def load_scalar(self, depth: int) -> None:
        name = self.name("s")
        self.add(depth, f"{name} = tl.load(ids + (({self.address('scalars')}) % {INDICES} + {INDICES}) % {INDICES})")
        self.add(depth, f"tl.store(y + {name} + {self.address('scalars')}, 1)")
        self.scalars.append((name, 1000))

    def update(self, depth: int) -> None:
        name, pool, limit = self.random.choice((("carried", "scalars", 509), ("moving", "blocks", 1009)))
        self.add(depth, f"{name} = ({self.expression(pool)[0]} % {limit}).to(tl.int32)")

    def branch(self, depth: int) -> None:
        self.add(depth, f"if {self.condition()}:")
        self.nest(depth + 1)
        if self.random.random() < 0.5:
            self.add(depth, "else:")
            self.nest(depth + 1)

    def loop(self, depth: int) -> None:
        counter, choose = self.name("j"), self.random.choice
        start, step = choose(("0", "-2", "1", "p0")), choose(("1", "1", "2", "n0 % 3 + 1"))
        end, form = (
            choose(("3", "5", f"{self.expression('scalars', 1)[0]} % 5")),
            choose(LOOPS[: 3 if depth == 1 else 2]),
        )
        is_while = self.random.random() < 0.25
        if is_while:
            self.add(depth, f"{counter} = p0 * 0 + {start}", f"while {counter} < {end}:")
        else:
            index = "copy" if "static" in form else self.name("i")
            self.add(depth, f"for {index} in {form.format(start, end, step)}:", f"    {counter} = p0 * 0 + {index}")
        self.loops.append(counter)
        self.scalars.append((counter, 16))
        self.nest(depth + 1)
        self.scalars.pop()
        self.loops.pop()
        if is_while or index == "copy":
            self.add(depth + is_while, f"{counter} = {counter} + {step}" if is_while else "copy = None")


def trace(name: str, executions, builder, native):
    """Wrap a function of the interpreter's native part: note the program, addresses and mask by source line."""

    def call(*arguments):
        frame = sys._getframe()
        while not Path(frame.f_code.co_filename).name.startswith("random_kernel"):
            frame = frame.f_back
        at, mask_at = {"load": (0, 1), "store": (0, 2), "atomic_rmw": (1, 3), "atomic_cas": (0, None)}[name]
        addresses, (x, y, _) = arguments[at].astype(np.int64), builder.grid_idx
        mask = np.broadcast_to(True if mask_at is None else arguments[mask_at], addresses.shape).astype(bool)
        copy = frame.f_locals.get("copy")  # which copy of an unrolled loop's body
        executions[frame.f_lineno].append((x + y * builder.grid_dim[0], addresses, mask, copy))
        return native(*arguments)

    return call


def compare_launch(capture, launch, executions, memory: np.ndarray) -> list[str]:
    """Return the differences between a launch's counts and its executions in the interpreter."""
    from kernels.compiling.captured_counts import count_launch
    from kernels.compiling.evaluate import STORAGE_STEP
    from kernels.compiling.requests import count_blocks

    counts, differences = count_launch(capture, launch), []
    storages = np.array([argument.tensor.storage for argument in launch.arguments if argument.tensor])
    by_line = collections.defaultdict(dict)  # an atomic that became a loop is listed twice
    for op in counts.operations:
        by_line[op.source[1]][id(op.tally)] = op
    for line in sorted({*by_line, *executions}):
        ops, done, outside = list(by_line[line].values()), [], False
        for program, addresses, mask, copy in executions[line]:
            number, at = np.divmod(addresses - memory.ctypes.data, REGION)
            done.append((program, (storages[number] + 1) * STORAGE_STEP + at - REGION // 2, mask, copy))
            outside |= bool(((at < REGION // 2) | (at >= REGION // 2 + TENSOR_BYTES))[mask].any())
        if counts.refused or any(op.tally.refused for op in ops):
            differences.append(f"line {line}: refused: {counts.refused} {[op.tally.refused for op in ops]}")
            continue
        if outside != any(op.tally.outside for op in ops):
            differences.append(f"line {line}: {'an' if outside else 'no'} access outside the tensor expected")
        touched = {(program, a[m].tobytes(), m.tobytes()) for program, a, m, _ in done}
        shown = [e for op in ops for e in (op.tally.example, op.tally.outside and op.tally.outside[0]) if e]
        if any((e.program, e.address[e.active].tobytes(), e.active.tobytes()) not in touched for e in shown):
            differences.append(f"line {line}: an example does not occur")
        # Copies may be different instructions. So may iterations that a pipelined loop loads in advance: not compared.
        are_copies = len(ops) == 3 and done and done[0][3] is not None
        for copy, part in enumerate([[op] for op in ops] if are_copies else [ops]):
            own = [execution for execution in done if not are_copies or execution[3] == copy]
            total, expected = sum((op.tally.counts for op in part), np.zeros(4, np.int64)), np.zeros(4, np.int64)
            if own and len({op.instruction for op in part}) > 1:
                continue
            if own and part:
                blocks = (np.stack([execution[k] for execution in own]) for k in (1, 2))
                expected = count_blocks(part[0].instruction, part[0].op == "load", *blocks).sum(axis=0)
            if not np.array_equal(total, expected) or (not part and any(m.any() for _, _, m, _ in own)):
                differences.append(f"line {line}: {total.tolist()} counted, {expected.tolist()} expected")
    return differences


def check_kernel(seed: int, launches: int, folder: Path) -> list[str]:
    """Return the differences in all launches of a random kernel."""
    import torch
    from triton.runtime import interpreter

    from kernels.compiling.capture import recording
    from kernels.compiling.capture_file import Capture

    source, generator = Source(seed), random.Random(~seed)
    path = folder / f"random_kernel_{seed}.py"
    path.write_text("\n".join(source.lines) + "\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    memory = np.zeros(4 * REGION, np.uint8)  # the system provides pages only when they are touched
    views = [memory[k * REGION + REGION // 2 :][:TENSOR_BYTES].view(kind) for k, kind in enumerate(source.kinds)]
    skipped = [*(generator.choice((0, 0, 16, 1)) for _ in range(3)), 0]
    divisible, native, traced = [generator.random() < 0.3 for _ in range(2)], interpreter._interpreter, []
    builder, warps = interpreter.interpreter_builder, generator.choice((1, 2, 4))
    builder.options = replace(builder.options, sanitize_overflow=False)  # twice as fast
    with recording(runs="interpreter") as recorder:
        tensors = [torch.from_numpy(view)[skip:] for view, skip in zip(views, skipped, strict=True)]
        for _ in range(launches):
            views[3][:] = [generator.randrange(-200, 1000) for _ in views[3]]
            numbers = [
                16 * generator.randint(1, 99) if even else 2 * generator.randint(1, 999) + 1 for even in divisible
            ]
            traced.append(collections.defaultdict(list))
            names = ("load", "store", "atomic_rmw", "atomic_cas")
            patches = {name: trace(name, traced[-1], builder, getattr(native, name)) for name in names}
            with mock.patch.multiple(native, **patches):
                module.kernel[generator.randint(1, 3), generator.randint(1, 2)](*tensors, *numbers, num_warps=warps)
    recorder.save(folder / f"{seed}.tilescope")
    capture, differences = Capture(folder / f"{seed}.tilescope"), recorder.not_captured
    if differences:  # the interpreter failed
        return [f"{path} {differences[0]}"]
    for launch, executions in zip(capture.content.launches, traced, strict=True):
        differences += compare_launch(capture, launch, executions, memory)
    return [f"{path} {difference}" for difference in differences]


@pytest.mark.parametrize("part", range(PROCESSES))
def test_counts_are_those_of_the_interpreters_addresses(part, tmp_path):
    count = KERNELS // PROCESSES
    command = [sys.executable, __file__, *map(str, (part * count, count, LAUNCHES, tmp_path))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


if __name__ == "__main__":
    first, count, launches = map(int, sys.argv[1:4])
    for seed in range(first, first + count):
        for difference in check_kernel(seed, launches, Path(sys.argv[4])):
            print(difference)
            is_wrong = True
    sys.exit("is_wrong" in globals())
