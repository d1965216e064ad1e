"""Random kernels: the evaluator counts exactly the requests of the addresses that Triton's interpreter accesses.

Run as a script for more of them: `python tests/oracle/test_evaluator.py FIRST_SEED KERNELS FOLDER`.
"""

import collections
import importlib.util
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
# Each kernel is compiled once and launched several times, with other numbers, grids and index values.
KERNELS, LAUNCHES, PROCESSES = 64, 8, 2
# Bytes of each tensor, and of the address space around it; number of values that addresses may depend on.
TENSOR_BYTES, REGION, INDICES = 1 << 14, 1 << 25, 500
SHAPES = ((64,), (128,), (512,), (8, 32), (16, 16), (64, 4))
DTYPES = ("int32", "int64", "float16", "float32")


class Source:
    """The text of a random kernel. An expression is a pair: its text, and a bound of its absolute value."""

    def __init__(self, random: random.Random) -> None:
        self.random, self.lines, self.loops, self.count = random, [], [], 0
        self.shape, self.aligned = random.choice(SHAPES), random.random() < 0.5
        self.scalars = [("p0", 4), ("p1", 3), ("n0", 3000), ("n1", 3000), ("carried", 509)]
        r, c = ("rows", self.shape[0]), ("columns", self.shape[-1])
        self.blocks = [r] if len(self.shape) == 1 else [(f"({r[0]} * {k} + {c[0]} * {m})", r[1] * k + c[1] * m)
                                                       for k, m in ((c[1], 1), (1, r[1]), (37, 2))]  # fmt: skip
        self.blocks.append(("moving", 1009))

    def write(self, name: str) -> str:
        sizes = ", ".join(map(str, self.shape))
        one, two = ("tl.arange(0, {})".format(size) for size in (self.shape[0], self.shape[-1]))
        rows, columns = (one, two) if len(self.shape) == 1 else (f"{one}[:, None]", f"{two}[None, :]")
        self.add(0, "@triton.jit", f"def {name}(x, y, z, ids, n0, n1):")
        self.add(1, "p0, p1 = tl.program_id(0), tl.program_id(1)", f"rows, columns = {rows}, {columns}",
                 f"carried, moving = p0 + 0, tl.zeros([{sizes}], tl.int32) + rows")  # fmt: skip
        for _ in range(self.random.randint(2, 5)):
            if self.random.random() < 0.1:
                self.add(1, f"if {self.condition()}:", "    return")
            self.statement(1)
        return "\n".join(self.lines) + "\n\n"

    def add(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def number(self) -> int:
        return self.random.choice((1, 2, 3, 4, 5, 8, 16, 31, 32, 100, 128))

    def fit(self, text: str, bound: int, limit: int = 1 << 19) -> tuple[str, int]:
        return (f"({text}) % {limit - 1}", limit) if bound > limit else (f"({text})", bound)

    def expression(self, pool: str = "blocks", depth: int = 2) -> tuple[str, int]:
        a, size = self.random.choice(getattr(self, pool))
        if depth == 0 or self.random.random() < 0.2:
            return a, size
        a, size = self.expression(pool, depth - 1)
        b, other = self.expression(self.random.choice((pool, "scalars")), depth - 1)
        k, axis = self.number(), self.random.randrange(len(self.shape))
        choices = [
            (f"{a} + {b}", size + other), (f"{a} - {b}", size + other), (f"{a} * {k}", size * k), (f"{a} // {k}", size),
            (f"{a} % {k}", k), (f"{a} // n0", size), (f"{a} % n1", 3000), (f"({a} % 99) * ({b} % 99)", 9801),
            (f"tl.minimum({a}, {b})", size + other), (f"tl.maximum({a}, {k})", size + k), (f"{a} + {k}", size + k),
            (f"{a} - {k}", size + k), (f"{k} - {a}", size + k), (f"{a} ^ {k}", 2 * size + 256), (f"{a} & {k}", 128),
            (f"{a} | {k}", 2 * size + 256), (f"{a} >> 2", size), (f"{a} << 2", 4 * size), (f"-{a}", size),
            (f"tl.abs({a})", size), (f"tl.cdiv({a}, {k})", size), (f"{a}.to(tl.int64) + {b}", size + other),
            (f"({a} % 99).to(tl.float32).to(tl.int32)", 99),
            (f"tl.where({self.compare(a, b)}, {a}, {b})", max(size, other)),
        ]  # fmt: skip
        if pool == "blocks":
            scan = self.random.choice(("sum({}, {}, keep_dims=True)", "cumsum({}, {})", "max({}, {}, keep_dims=True)"))
            choices += 2 * [("tl." + scan.format(f"{a} % 16", axis) + f" + {a}", 16 * 512 + size)]
        return self.fit(*self.random.choice(choices))

    def compare(self, a: str, b: str) -> str:
        k = self.number()
        return self.random.choice((f"({a} < {b})", f"({a} >= {k})", f"({a} % {k} != 1)", f"({a} < n0)", f"({b} > {a})"))

    def condition(self) -> str:
        return self.compare(self.expression("scalars", 1)[0], self.expression("scalars", 1)[0])

    def mask(self) -> str:
        parts = [self.compare(self.expression(depth=1)[0], self.expression("scalars", 1)[0]) for _ in range(3)]
        form = self.random.choice(("{0}", "{0} & {1}", "({0} & {1}) | {2}", "{0} & {1} & {2}", "{0} & ({1} == 0)", "{3} & {0}"))
        return f"({form.format(*parts, self.condition())})"

    def address(self, pool: str = "blocks", extra: str = "") -> str:
        """Return an address that no other operation and no other iteration has, so that no load is moved or merged."""
        self.count += 1
        kind = self.random.random()
        text = self.expression(pool)[0]
        if pool == "blocks" and kind < 0.5:
            text = self.blocks[0][0] + (f" * {self.number()}" if kind < 0.2 else f" + {self.expression('scalars', 2)[0]} * 16")
        text += extra + f" + {self.count * (16 if self.aligned else 3)}"
        return text + "".join(f" + {loop} * {16 if self.aligned else 33}" for loop in self.loops[-1:])

    def statement(self, depth: int) -> None:
        kinds = [self.access] * 4 + [self.gather, self.loaded_scalar, self.update]
        self.random.choice(kinds + [self.branch, self.loop] * (2 if depth < 3 and len(self.lines) < 25 else 0))(depth)

    def nested(self, depth: int) -> None:
        before = list(self.scalars), list(self.blocks)
        for _ in range(self.random.randint(1, 2)):
            self.statement(depth)
        self.scalars, self.blocks = before

    def access(self, depth: int, extra: str = "") -> None:
        value, mask = self.name("v"), f", mask={self.mask()}"
        mask, store_mask = (self.random.choice(("", mask)) for _ in range(2))
        other = ", other=1" if mask and self.random.random() < 0.5 else ""
        self.add(depth, f"{value} = tl.load(x + {self.address(extra=extra)}{mask}{other})")
        kind, converted = self.random.random(), f"{value}.to(z.dtype.element_ty)"
        if kind < 0.5:
            self.add(depth, f"tl.store(y + {self.address()}, {value}{store_mask})")
        elif kind < 0.65:
            self.add(depth, f"tl.store(y + {self.address('scalars')}, tl.sum({value}).to(y.dtype.element_ty))")
        elif kind < 0.85:
            self.add(depth, f"tl.atomic_add(z + {self.address()}, {converted}{store_mask})")
        else:
            self.add(depth, f"old = tl.atomic_add(z + {self.address()}, {converted}{store_mask})",
                     f"tl.store(y + {self.address()}, old{store_mask})")  # fmt: skip

    def gather(self, depth: int) -> None:
        name, place = self.name("b"), self.name("i")
        self.add(depth, f"{place} = {self.address()}",
                 f"{name} = tl.load(ids + {place}, mask=({place} >= 0) & ({place} < {INDICES}) & {self.mask()}, other=7)")  # fmt: skip
        self.access(depth, extra=f" + {name} * {self.number()}")
        self.blocks.append((name, 1000))

    def loaded_scalar(self, depth: int) -> None:
        name = self.name("s")
        self.add(depth, f"{name} = tl.load(ids + (({self.address('scalars')}) % {INDICES} + {INDICES}) % {INDICES})",
                 f"tl.store(y + {name} + {self.address('scalars')}, 1)")  # fmt: skip
        self.scalars.append((name, 1000))

    def update(self, depth: int) -> None:
        self.add(depth, f"carried = (({self.expression('scalars')[0]}) % 509).to(tl.int32)" if self.random.random() < 0.5
                 else f"moving = (({self.expression()[0]}) % 1009).to(tl.int32)")  # fmt: skip

    def branch(self, depth: int) -> None:
        self.add(depth, f"if {self.condition()}:")
        self.nested(depth + 1)
        if self.random.random() < 0.5:
            self.add(depth, "else:")
            self.nested(depth + 1)

    def loop(self, depth: int) -> None:
        index, counter = self.name("i"), self.name("j")
        end = self.random.choice(("3", "5", f"({self.expression('scalars', 1)[0]}) % 5"))
        start, step = self.random.choice(("0", "-2", "1", "p0")), self.random.choice(("1", "1", "2", "n0 % 3 + 1"))
        is_while = self.random.random() < 0.25
        if is_while:
            self.add(depth, f"{counter} = p0 * 0 + {start}", f"while {counter} < {end}:")
        else:
            form = self.random.choice(("range({}, {}, {})", "tl.range({}, {}, {}, num_stages=3)", "tl.static_range(0, 3)"))
            is_unrolled = "static" in form and depth == 1
            index, form = ("copy", form) if is_unrolled else (index, form.replace("tl.static_", ""))
            self.add(depth, f"for {index} in {form.format(start, end, step)}:", f"    {counter} = p0 * 0 + {index}")
        self.loops.append(counter)
        self.scalars.append((counter, 16))
        self.nested(depth + 1)
        self.scalars.pop()
        self.loops.pop()
        if is_while:
            self.add(depth + 1, f"{counter} = {counter} + {step}")
        elif is_unrolled:
            self.add(depth, "copy = None")


class Tracer:
    """Triton's native part of the interpreter. Records each access by its source line before it is executed."""

    def __init__(self, native, builder) -> None:
        self.native, self.builder = native, builder
        self.executions = collections.defaultdict(list)  # for each line: program, addresses, mask

    def __getattr__(self, name):
        return getattr(self.native, name)

    def load(self, pointers, mask, *rest):
        self.record(pointers, mask)
        return self.native.load(pointers, mask, *rest)

    def store(self, pointers, values, mask):
        self.record(pointers, mask)
        return self.native.store(pointers, values, mask)

    def atomic_rmw(self, operation, pointers, values, mask, *rest):
        self.record(pointers, mask)
        return self.native.atomic_rmw(operation, pointers, values, mask, *rest)

    def record(self, pointers, mask) -> None:
        frame = sys._getframe()
        while not Path(frame.f_code.co_filename).name.startswith("random_kernel"):
            frame = frame.f_back
        (x, y, _), (width, _, _) = self.builder.grid_idx, self.builder.grid_dim
        addresses = pointers.astype(np.int64)
        mask = np.broadcast_to(mask, addresses.shape).astype(bool)
        copy = frame.f_locals.get("copy")
        self.executions[frame.f_lineno].append((x + y * width, addresses, mask, copy))


def compare_launch(capture, launch, executions, memory: np.ndarray) -> list[str]:
    """Return the differences between a launch's counts and its executions in the interpreter."""
    from kernels.compiling.captured_counts import count_launch
    from kernels.compiling.evaluate import STORAGE_STEP
    from kernels.compiling.requests import count_blocks

    counts, differences = count_launch(capture, launch), []
    if counts.refused:
        return [f"refused: {counts.refused}"]
    storages = np.array([argument.tensor.storage for argument in launch.arguments if argument.tensor])
    lines = {operation.source[1] for operation in counts.operations}
    differences += [f"line {line} has no operation" for line, done in executions.items()
                    if line not in lines and any(mask.any() for _, _, mask, _ in done)]  # fmt: skip
    for line in sorted(lines):
        operations = list({id(op.tally): op for op in counts.operations if op.source[1] == line}.values())
        if why := {op.tally.refused for op in operations if op.tally.refused}:
            differences.append(f"line {line} refused: {why}")
            continue
        executions_of_line, outside = [], False
        for program, addresses, mask, copy in executions.get(line, []):
            number, at = np.divmod(addresses - memory.ctypes.data, REGION)
            addresses = (storages[number] + 1) * STORAGE_STEP + at - REGION // 2
            executions_of_line.append((program, addresses, mask, copy))
            outside |= bool(((at < REGION // 2) | (at >= REGION // 2 + TENSOR_BYTES))[mask].any())
        if outside != any(op.tally.outside for op in operations):
            differences.append(f"line {line}: accesses outside a tensor: {outside} expected")
        for op in operations:
            for example in filter(None, (op.tally.example, op.tally.outside and op.tally.outside[0])):
                pairs = ((a, m) for program, a, m, _ in executions_of_line if program == example.program)
                shape = example.active.shape
                if not any(np.array_equal(m.reshape(shape), example.active)
                           and np.array_equal(a.reshape(shape)[example.active], example.address[example.active])
                           for a, m in pairs):  # fmt: skip
                    differences.append(f"line {line}: program {example.program} never accesses {example}")
        # The three copies of an operation in an unrolled loop may be different instructions.
        are_copies = len(operations) == 3 and executions_of_line and executions_of_line[0][3] is not None
        parts = [[op] for op in operations] if are_copies else [operations]
        for copy, part in enumerate(parts):
            done = [execution for execution in executions_of_line if not are_copies or execution[3] == copy]
            if len({op.instruction for op in part}) > 1:
                differences.append(f"line {line} has several instructions")
                continue
            total, expected = sum(op.tally.counts for op in part), np.zeros(4, np.int64)
            if done:
                blocks = (np.stack([execution[k] for execution in done]) for k in (1, 2))
                is_load = part[0].op in ("load", "async copy")
                expected = count_blocks(part[0].instruction, is_load and part[0].counter == "ld", *blocks).sum(axis=0)
            if not np.array_equal(total, expected):
                differences.append(f"line {line}: {total.tolist()} counted, {expected.tolist()} expected")
    return differences


def check_kernel(seed: int, folder: Path) -> list[str]:
    """Return the differences in all launches of a random kernel, with its source."""
    import torch
    from triton.runtime import interpreter

    from kernels.compiling.capture import recording
    from kernels.compiling.capture_file import Capture

    generator = random.Random(seed)
    source = Source(generator)
    path = folder / f"random_kernel_{seed}.py"
    path.write_text("import triton\nimport triton.language as tl\n\n\n" + source.write("kernel"))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    memory = np.zeros(4 * REGION, np.uint8)  # the system provides pages only when they are touched
    kinds = [generator.choice(choices) for choices in (DTYPES, (*DTYPES, "int8"), DTYPES, DTYPES[:2])]
    views = [memory[k * REGION + REGION // 2 :][:TENSOR_BYTES].view(kind) for k, kind in enumerate(kinds)]
    skipped = [generator.choice((0, 0, 16, 1)) for _ in range(3)] + [0]
    divisible, native, traced = [generator.random() < 0.3 for _ in range(2)], interpreter._interpreter, []
    options = {"num_warps": generator.choice((1, 2, 4))}
    try:
        with recording(runs="interpreter") as recorder:
            tensors = [torch.from_numpy(view)[skip:] for view, skip in zip(views, skipped, strict=True)]
            for _ in range(LAUNCHES):
                views[3][:] = np.array([generator.randrange(-200, 1000) for _ in views[3]])
                numbers = [16 * generator.randint(1, 99) if even else 2 * generator.randint(1, 999) + 1 for even in divisible]
                interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
                interpreter._interpreter = Tracer(native, interpreter.interpreter_builder)
                module.kernel[generator.randint(1, 3), generator.randint(1, 2)](*tensors, *numbers, **options)
                traced.append(interpreter._interpreter.executions)
    finally:
        interpreter._interpreter = native
    if recorder.not_captured:
        return [str(path), *recorder.not_captured]
    recorder.save(folder / f"{seed}.tilescope")
    capture = Capture(folder / f"{seed}.tilescope")
    pairs = zip(capture.content.launches, traced, strict=True)
    return [f"{path} {difference}" for launch, executions in pairs for difference in compare_launch(capture, launch, executions, memory)]


def main() -> int:
    first, count, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    failures = [line for seed in range(first, first + count) for line in check_kernel(seed, folder)]
    print("\n".join(failures))
    return bool(failures)


@pytest.mark.parametrize("part", range(PROCESSES))
def test_counts_are_those_of_the_interpreters_addresses(part, tmp_path):
    count = KERNELS // PROCESSES
    ended = subprocess.run([sys.executable, __file__, str(part * count), str(count), str(tmp_path)],
                           env={**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path / "cache")},
                           capture_output=True, text=True, check=False)  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr


if __name__ == "__main__":
    sys.exit(main())
