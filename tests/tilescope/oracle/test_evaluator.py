"""Random kernels: the evaluator counts exactly the requests of the addresses that Triton's interpreter accesses.

As a script: `python -m tests.tilescope.oracle.test_evaluator LAUNCHES FOLDER SEED...` prints the differences.
"""

import collections
import importlib.util
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.trees import ROOT, python
from tilescope.captures.reader import Capture
from tilescope.evaluate.captured import count_launch
from tilescope.evaluate.global_memory import STORAGE_STEP
from tilescope.evaluate.sectors import RequestCosts
from tilescope.evaluate.values import choose, from_table

# Each kernel is compiled once, and launched several times with other numbers, grids and index values.
# These seeds' kernels have all operations, masks, loops and shapes.
SEEDS, LAUNCHES, PROCESSES = range(12, 32), 2, 2
# Bytes of each tensor, and of the address space around it; number of values that addresses may depend on.
TENSOR_BYTES, REGION, INDICES = 1 << 14, 1 << 28, 500
DTYPES = ("int32", "int64", "float16", "float32")
ATOMICS = {"int32": ("add", "max", "xchg", "cas"), "int64": ("add", "max", "cas")}
SHAPES = ((64,), (128,), (512,), (8, 32), (16, 16), (64, 4))
# Operations on a block or scalar {a} with bound A, a second {b} with bound B and a constant {k}: text, and bound.
OPERATIONS = """
{a} + {b} -> A + B
{a} - {b} * 2 -> A + 2 * B
{a} * {k} -> A * k
{a} // {k} -> A
-{a} -> A
{a} % ({k} + 1) -> k
{a} // n0 -> A
{a} % n1 -> 3000
({a} % 99) * ({b} % 99) -> 9801
tl.minimum({a}, {b}) -> A + B
tl.maximum({a}, {k}) -> A + k
{a} - {k} -> A + k
{a} >> 2 -> A
{k} - {a} -> A + k
{a} ^ {k} -> 2 * A + 256
{a} & {k} -> 128
{a} | {k} -> 2 * A + 256
{a} << 2 -> 4 * A
tl.abs({a}) -> A
tl.cdiv({a}, {k}) -> A
{a}.to(tl.int64) + {b} -> A + B
({a} % 99).to(tl.float32).to(tl.int32) -> 99
tl.where({a} < {b}, {a}, {b}) -> A + B
tl.where({a} % {k} == 0, {a}, n0) -> A + 3000
"""
OPERATIONS = [line.split(" -> ") for line in OPERATIONS.strip().splitlines()]
FOLDS = (
    "cumsum({a} % 16, {axis})",
    "max({a} % 16, {axis}, keep_dims=True)",
    "sum({a} % 16, {axis}, keep_dims=True)",
)
COMPARISONS = (
    "({a} < {b})",
    "({a} >= {k})",
    "({a} % ({k} + 1) != 1)",
    "({a} < n0 + 5)",
    "({b} > {a})",
)
MASKS = ("({0})", "({0} & {1})", "(({0} & {1}) | {2})", "({0} & ({1} == 0))", "({3} & {0})")
LOOPS = ("range({}, {}, {})", "tl.range({}, {}, {}, num_stages=3)", "tl.static_range(0, 3)")


class Source(random.Random):
    """The text of a random kernel. An expression is a pair: its text, and a bound of its absolute value."""

    def __init__(self, seed):
        super().__init__(seed)
        self.lines, self.loops, self.count = [], [], 0
        # The dtypes of x, y, z and ids
        self.kinds = [*map(self.choice, (DTYPES, (*DTYPES, "int8"), DTYPES, DTYPES[:2]))]
        self.shape = self.choice(SHAPES)
        # Elements between operations' addresses
        self.pitch = self.choice((3, 16))
        rows, columns = self.shape[0], self.shape[-1]
        is_flat = len(self.shape) == 1
        self.scalars = [("p0", 4), ("p1", 3), ("n0", 3000), ("n1", 3000), ("carried", 509)]
        self.blocks = [
            ("rows" if is_flat else f"(rows * {columns} + columns)", 512),
            ("moving", 1009),
        ]
        self.blocks.append((f"(rows + columns * {rows})", 1 << 18))
        first, last = ("", "") if is_flat else ("[:, None]", "[None, :]")
        self.add(
            0,
            "import triton",
            "import triton.language as tl",
            "@triton.jit",
            "def kernel(x, y, z, ids, n0, n1):",
        )
        self.add(
            1, "p0, p1 = tl.program_id(0), tl.program_id(1)", f"rows = tl.arange(0, {rows}){first}"
        )
        self.add(1, f"columns = tl.arange(0, {columns}){last}", "carried = p0 + 0")
        self.add(1, f"moving = tl.zeros({list(self.shape)}, tl.int32) + rows")
        for _ in range(self.randint(2, 5)):
            if self.random() < 0.1:
                self.add(1, f"if {self.condition()}:", "    return")
            self.statement(1)

    def add(self, depth, *lines):
        self.lines += ["    " * depth + line for line in lines]

    def name(self, prefix):
        self.count += 1
        return f"{prefix}{self.count}"

    def number(self):
        return self.choice((1, 2, 3, 4, 5, 8, 16, 31, 32, 100, 128))

    def expression(self, pool="blocks", depth=2):
        if depth == 0 or self.random() < 0.2:
            return self.choice(getattr(self, pool))
        (a, A), k = self.expression(pool, depth - 1), self.number()
        b, B = self.expression(self.choice((pool, "scalars")), depth - 1)
        text, bound = self.choice(OPERATIONS)
        if pool == "blocks" and self.random() < 0.1:
            text, bound = f"{{a}} + tl.{self.choice(FOLDS)}", "A + 16 * 512"
        text = text.format(a=a, b=b, k=k, axis=self.randrange(len(self.shape)))
        bound = eval(bound, {"A": A, "B": B, "k": k})
        return (f"(({text}) % 524287)", 524287) if bound > 524287 else (f"({text})", bound)

    def condition(self, pool="scalars"):
        a, b = self.expression(pool, 1)[0], self.expression("scalars", 1)[0]
        return self.choice(COMPARISONS).format(a=a, b=b if b != a else 7, k=self.number())

    def mask(self):
        return self.choice(MASKS).format(
            *(self.condition("blocks") for _ in range(3)), self.condition()
        )

    def address(self, pool="blocks"):
        """Return an address that no other operation and no other iteration has, so that no load is moved or merged."""
        self.count += 1
        text, kind = self.expression(pool)[0], self.random()
        if pool == "blocks" and kind < 0.5:
            offset = (
                f" * {self.number()}" if kind < 0.2 else f" + {self.expression('scalars')[0]} * 16"
            )
            text = self.blocks[0][0] + offset
        return f"{text} + {self.count * self.pitch}" + "".join(
            f" + {i} * {11 * self.pitch}" for i in self.loops[-1:]
        )

    def statement(self, depth):
        kinds = [self.access] * 4 + [self.gather, self.load_scalar, self.update]
        nested = [self.branch, self.loop] * 2 if depth < 3 and len(self.lines) < 25 else []
        self.choice(kinds + nested)(depth)

    def nest(self, depth, counters=()):
        before = list(self.scalars), list(self.blocks)
        self.scalars += counters
        for _ in range(self.randint(1, 2)):
            self.statement(depth)
        self.scalars, self.blocks = before

    def access(self, depth, extra=""):
        value, mask = self.name("v"), f", mask={self.mask()}"
        mask, other = self.choice((("", ""), (mask, ", other=1"), (mask, "")))
        self.add(depth, f"{value} = tl.load(x + {self.address()}{extra}{mask}{other})")
        kind, mask = self.choice(ATOMICS.get(self.kinds[2], ("add",))), self.choice(("", mask))
        operands = f"{value}.to(z.dtype.element_ty)" + (
            f", {value}.to(z.dtype.element_ty)" if kind == "cas" else mask
        )
        atomic = f"tl.atomic_{kind}(z + {self.address()}, {operands})"
        total = f"tl.store(y + {self.address('scalars')}, tl.sum({value}).to(y.dtype.element_ty))"
        returned = [f"old = {atomic}", f"tl.store(y + {self.address()}, old{mask})"]
        store = f"tl.store(y + {self.address()}, {value}{mask})"
        self.add(depth, *self.choice(([store], [store], [total], [atomic], returned)))

    def gather(self, depth):
        name, place = self.name("b"), self.name("i")
        mask = f"({place} >= 0) & ({place} < {INDICES}) & {self.mask()}"
        self.add(
            depth,
            f"{place} = {self.address()}",
            f"{name} = tl.load(ids + {place}, mask={mask}, other=7)",
        )
        self.access(depth, extra=f" + {name} * {self.number()}")
        self.blocks.append((name, 1000))

    def load_scalar(self, depth):
        name = self.name("s")
        self.add(
            depth,
            f"{name} = tl.load(ids + (({self.address('scalars')}) % {INDICES} + {INDICES}) % {INDICES})",
        )
        self.add(depth, f"tl.store(y + {name} + {self.address('scalars')}, 1)")
        self.scalars.append((name, 1000))

    def update(self, depth):
        name, pool, limit = self.choice((("carried", "scalars", 509), ("moving", "blocks", 1009)))
        self.add(depth, f"{name} = ({self.expression(pool)[0]} % {limit}).to(tl.int32)")

    def branch(self, depth):
        self.add(depth, f"if {self.condition()}:")
        self.nest(depth + 1)
        if self.random() < 0.5:
            self.add(depth, "else:")
            self.nest(depth + 1)

    def loop(self, depth):
        counter = self.name("j")
        form = self.choice(LOOPS[: 3 if depth == 1 else 2])
        index = self.name("i")
        start = self.choice(("0", "-2", "1", "p0"))
        step = self.choice(("1", "1", "2", "n0 % 3 + 1"))
        end = self.choice(("3", "5", f"{self.expression('scalars', 1)[0]} % 5"))
        next_index = ""
        if self.random() < 0.25:
            self.add(depth, f"{counter} = p0 * 0 + {start}", f"while {counter} < {end}:")
            next_index = f"    {counter} = {counter} + {step}"
        else:
            if "static" in form:
                index = "copy"
                next_index = "copy = None"
            self.add(
                depth,
                f"for {index} in {form.format(start, end, step)}:",
                f"    {counter} = p0 * 0 + {index}",
            )
        self.loops.append(counter)
        self.nest(depth + 1, [(counter, 16)])
        self.loops.pop()
        self.add(depth, next_index)


def trace(name, native, builder, executions):
    """Wrap a function of the interpreter's native part: note the program, addresses and mask by source line."""
    at, mask_at = {"load": (0, 1), "store": (0, 2), "atomic_rmw": (1, 3), "atomic_cas": (0, None)}[
        name
    ]

    def call(*arguments):
        frame = sys._getframe()
        while "random_kernel" not in frame.f_code.co_filename:
            frame = frame.f_back
        addresses = arguments[at].astype(np.int64)
        program = builder.grid_idx[0] + builder.grid_idx[1] * builder.grid_dim[0]
        mask = np.broadcast_to(
            True if mask_at is None else arguments[mask_at], addresses.shape
        ).astype(bool)
        copy = frame.f_locals.get("copy")  # which copy of an unrolled loop's body
        executions[frame.f_lineno].append((program, addresses, mask, copy))
        return native(*arguments)

    return call


def count_executions(instruction, num_warps, executions):
    """Return the counts of executions in the interpreter."""
    place, owner = instruction.lanes(num_warps)
    numbers = np.arange(len(executions))
    shape = len(numbers), *(instruction.layout.shape if instruction.layout else ())
    blocks = (np.stack([execution[k] for execution in executions]).reshape(shape) for k in (1, 2))
    values = (from_table(block, numbers).at(numbers, place) for block in blocks)
    address, active = (np.broadcast_to(value, (len(numbers), *owner.shape)) for value in values)
    lanes = (part.reshape(-1, owner.shape[1]) for part in (address, active & owner))
    return np.sum(instruction.count_requests(*lanes), axis=1)


def compare_launch(capture, launch, executions, memory):
    """Yield the differences between a launch's counts and its executions in the interpreter."""
    counts, by_line = count_launch(capture, launch), collections.defaultdict(dict)
    num_warps = capture.content.kernels[launch.kernel].num_warps
    storages = np.array(
        [argument.tensor.storage for argument in launch.arguments if argument.tensor]
    )
    for op in counts.operations:
        # An atomic that became a loop is listed twice.
        if not (op.op == "load" and op.instruction and op.instruction.swaps):
            by_line[op.source[1]][id(op.tally)] = op
    for line in sorted({*by_line, *executions}):
        ops, done, outside = list(by_line[line].values()), [], False
        for program, addresses, mask, copy in executions[line]:
            number, at = np.divmod(addresses - memory.ctypes.data, REGION)
            at = at - REGION // 2
            done.append((program, (storages[number] + 1) * STORAGE_STEP + at, mask, copy))
            outside |= bool(((at < 0) | (at >= TENSOR_BYTES))[mask].any())
        # The interpreter executes loads that the compiler merged or dropped.
        if any(op.tally.is_upper_bound for op in ops):
            continue
        own = (op.tally.refused for op in ops if not (op.instruction and op.instruction.swaps))
        if refused := [why for why in (counts.refused, *own) if why]:
            yield f"line {line}: refused: {refused}"
            continue
        if outside != any(op.tally.outside for op in ops):
            yield f"line {line}: {'an' if outside else 'no'} access outside the tensor expected"
        touched = {(program, a[m].tobytes(), m.tobytes()) for program, a, m, _ in done}
        examples = [
            e
            for op in ops
            for e in (op.tally.example, op.tally.outside and op.tally.outside[0])
            if e
        ]
        if any(
            (e.program, e.address[e.active].tobytes(), e.active.tobytes()) not in touched
            for e in examples
        ):
            yield f"line {line}: an example does not occur"
        # Copies may be different instructions. So may iterations that a pipelined loop loads in advance: not compared.
        are_copies = len(ops) == 3 and done and done[0][3] is not None
        for copy, part in enumerate([[op] for op in ops] if are_copies else [ops]):
            own = [e for e in done if e[2].any() and (not are_copies or e[3] == copy)]
            instructions = {op.instruction for op in part}
            if own and len(instructions) > 1:
                continue
            expected = np.zeros(len(RequestCosts._fields), np.int64)
            total = sum((op.tally.counts for op in part), expected)
            if own and instructions not in (set(), {None}):
                expected = count_executions(*instructions, num_warps, own)
            elif own:
                expected = "more"
            if not np.array_equal(total, expected):
                yield f"line {line}: {total} counted, {expected} expected"


def check_kernel(seed, launches, folder):
    """Yield the differences in all launches of a random kernel."""
    import torch
    from triton.runtime import interpreter

    from tilescope.record.capture_file import write_capture
    from tilescope.record.patches import recording

    source, path = Source(seed), folder / f"random_kernel_{seed}.py"
    path.write_text("\n".join(source.lines) + "\n")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    memory = np.zeros(4 * REGION, np.uint8)  # the system provides pages only when they are touched
    views = [
        memory[k * REGION + REGION // 2 :][:TENSOR_BYTES].view(kind)
        for k, kind in enumerate(source.kinds)
    ]
    skipped = [source.choice((0, 0, 16, 1)) for _ in views[:3]] + [0]
    divisible = [source.random() < 0.3 for _ in "01"]
    native = interpreter._interpreter
    builder = interpreter.interpreter_builder
    warps = source.choice((1, 2, 4))
    builder.options = replace(builder.options, sanitize_overflow=False)  # twice as fast
    functions = {
        name: getattr(native, name) for name in ("load", "store", "atomic_rmw", "atomic_cas")
    }
    traced = [collections.defaultdict(list) for _ in range(launches)]
    recorded = Path(tempfile.mkdtemp(dir=folder))
    with recording(recorded, runs="interpreter"):
        tensors = [torch.from_numpy(view)[skip:] for view, skip in zip(views, skipped, strict=True)]
        for executions in traced:
            views[3][:] = [source.randrange(-200, 1000) for _ in views[3]]
            numbers = [
                source.randrange(16, 1600, 16) if even else source.randrange(3, 2000, 2)
                for even in divisible
            ]
            calls = {
                name: trace(name, call, builder, executions) for name, call in functions.items()
            }
            with mock.patch.multiple(native, **calls):
                module.kernel[source.randint(1, 3), source.randint(1, 2)](
                    *tensors, *numbers, num_warps=warps
                )
    write_capture(recorded, folder / f"{seed}.tilescope")
    capture = Capture(folder / f"{seed}.tilescope")
    if capture.content.not_captured:
        yield f"{path} {capture.content.not_captured[0]}"
        return
    for launch, executions in zip(capture.content.launches, traced, strict=True):
        yield from (
            f"{path} {difference}"
            for difference in compare_launch(capture, launch, executions, memory)
        )


@pytest.mark.parametrize("part", range(PROCESSES))
def test_counts_are_those_of_the_interpreters_addresses(part, tmp_path, compiled_before):
    seeds = SEEDS[part::PROCESSES]
    arguments = __file__, LAUNCHES, tmp_path, *seeds
    ended = python(ROOT, *arguments, TRITON_CACHE_DIR=str(compiled_before))
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stdout + ended.stderr


if __name__ == "__main__":
    _, launches, folder, *seeds = sys.argv
    for seed in map(int, seeds):
        for difference in check_kernel(seed, int(launches), Path(folder)):
            print(difference, flush=True)


def test_blocks_chosen_again_in_each_iteration_take_no_more_rows_than_programs():
    programs = 3
    chosen = from_table(np.zeros((1, 4), np.int64))
    expected = np.zeros((programs, 4), np.int64)
    for i in range(1, 6):
        changes = np.arange(programs) % i == 0
        chosen = choose(changes, from_table(np.full((1, 4), i)), chosen)
        expected[changes] = i
        assert len(chosen.terms[0].table) <= programs
    assert (chosen.blocks(np.arange(programs)) == expected).all()
