"""The content of a capture: dataclasses in the form of the file's JSON, which pydantic checks against them."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tilescope.captures.layouts import Layout

Count = Annotated[int, Field(ge=0, lt=1 << 40)]
Extent = Annotated[int, Field(ge=1, lt=1 << 31)]
Number = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
# A report's JSON has null for an error that is not finite.
ErrorNumber = Annotated[float, BeforeValidator(lambda error: math.nan if error is None else error)]


@dataclass(frozen=True)
class Place:
    file: str
    line: int


@dataclass(frozen=True)
class Tensor:
    """A tensor argument of a launch. Strides are in elements.

    Attributes:
        storage: number of the storage that holds it.
        offset_bytes: its first byte, from the storage's start.
        array: number of the array with the storage's contents before the launch; None if there is no copy.
        is_known: false if its values may depend on launches that did not run.
    """

    dtype: str
    element_bytes: Annotated[int, Field(ge=1, le=16)]
    shape: tuple[Number, ...]
    strides: tuple[Number, ...]
    storage: Count
    offset_bytes: Count
    array: Count | None
    is_known: bool


@dataclass(frozen=True)
class TensorDescriptor:
    """A tensor descriptor that the host made. Shape and strides are in elements."""

    tensor: Tensor
    shape: tuple[Number, ...]
    strides: tuple[Number, ...]
    block_shape: tuple[Number, ...]


@dataclass(frozen=True)
class Argument:
    """An argument of the compiled function: a tensor, a descriptor, or a number."""

    name: str
    tensor: Tensor | None = None
    descriptor: TensorDescriptor | None = None
    value: bool | Number | float | Literal["nan", "inf", "-inf"] | None = None

    @property
    def own_tensor(self) -> Tensor | None:
        """The tensor that it points to, itself or through a descriptor."""
        return self.tensor or (self.descriptor.tensor if self.descriptor else None)

    @property
    def number(self) -> float | int | bool:
        return float(self.value) if isinstance(self.value, str) else self.value or 0


@dataclass(frozen=True)
class Tuned:
    """The autotuner config that was launched: `number` counts from 1, and `of` is the number of configs.

    Attributes:
        restored: the arguments that the tuner resets before each run; None if that is unknown.
    """

    number: int
    of: int
    restored: tuple[str, ...] | None = None


@dataclass(frozen=True)
class OutputErrors:
    """Errors of a case's output. `relative_rms` is relative to the RMS of the expected output."""

    relative_rms: ErrorNumber
    max_abs_error: ErrorNumber
    passed: bool


@dataclass(frozen=True)
class CountedLaunch:
    """Measurements of a launch: Nsight Compute's counters, if it saw the launch, and its time without the profiler."""

    counters: Mapping[str, Count] | None
    elapsed_ms: float | None


_NOT_MODELLED = "Requests, conflicts, layouts, pipelines, executed instructions and times are not modelled for AMD."

# The name of a launch's predicted time among the numbers of a finding.
TIME = "predicted_ns"

# The kinds of findings about wrong results, and launches that fail.
_FAULTS = (
    "check", "outside", "overflow", "race", "barrier", "autotuner", "shared memory", "tensor memory",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """A finding about a launch: a fact and, if `change` is set, an experiment that was run.

    Attributes:
        kind: such as "misaligned" or "spills".
        file, line: the place of the operation, or of the kernel if the finding is about the whole launch.
        op, tensor: of the operation as in a report; "" if the finding is about the whole launch.
        text: the fact.
        change: what was changed.
        before, after: numbers without and with the change, such as requests and sectors.
        needs: what must hold for the change to keep the kernel's result.
        options: of the compiler, with the values that the change gives them.
    """

    kind: str
    file: str
    line: int
    op: str = ""
    tensor: str = ""
    text: str = ""
    change: str = ""
    before: Mapping[str, Count] = field(default_factory=dict)
    after: Mapping[str, Count] = field(default_factory=dict)
    needs: str = ""
    options: Mapping[str, int] = field(default_factory=dict)

    @property
    def place(self) -> tuple[str, int, str, str]:
        return self.file, self.line, self.op, self.tensor

    @property
    def is_fault(self) -> bool:
        return self.kind in _FAULTS

    @property
    def saving(self) -> float | None:
        """The part of the predicted time that the change saves; None if it is unknown."""
        return 1 - self.after[TIME] / self.before[TIME] if TIME in self.after else None


@dataclass(frozen=True)
class AllocatedBuffer:
    """A buffer in a program's shared memory.

    Attributes:
        line: the line of its operation in the TTGIR's text, from 0.
    """

    line: Count
    offset_bytes: Count
    size_bytes: Count


@dataclass(frozen=True)
class Allocation:
    """How the compiler allocates a program's shared memory.

    Attributes:
        bytes_by_stages: the shared memory with one stage fewer and one more; empty if num_stages has no effect.
        why_missing: why the allocation is unknown.
    """

    buffers: tuple[AllocatedBuffer, ...] = ()
    bytes_by_stages: Mapping[int, Count] = field(default_factory=dict)
    why_missing: str = ""


@dataclass(frozen=True)
class Specialization:
    """A property of an argument, or an option, for which a kernel was compiled.

    Attributes:
        argument: the name of an argument, or of an option of the compiler.
        kind: "divisible by 16", "equal to 1", "alignment" (to 16 bytes), "dtype", "constexpr" or "option".
        value: true or false; the dtype; the value of the constant (None for an argument that is None) or option.
    """

    argument: str
    kind: str
    value: Any


@dataclass(frozen=True)
class CapturedKernel:
    """A compiled kernel.

    Attributes:
        file, line: where its function is defined.
        layouts: the layout of the pointers of each operation on pointers, in the TTGIR's order; None for a scalar.
        options: of the compiler.
        allocation: None if the capture lacks it.
        specializations: none in captures of earlier versions.
        tensor_columns: of tensor memory that a program needs.
    """

    name: str
    file: str
    line: int
    source: str
    registers: Count
    spilled_bytes: Count
    shared_bytes: Count
    num_warps: Annotated[int, Field(ge=1, le=64)]
    num_ctas: Annotated[int, Field(ge=1, le=16)]
    layouts: tuple[Layout | None, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    allocation: Allocation | None = None
    specializations: tuple[Specialization, ...] = ()
    tensor_columns: Count = 0


@dataclass(frozen=True)
class CapturedLaunch:
    """A launch of a kernel.

    Attributes:
        kernel: number of the kernel.
        caller: the line that launched it.
        config: constants and options.
        ran: where it ran, if it did.
        elapsed_ms: GPU time: for a case, the median of many launches; otherwise the time of this launch.
        settings: the case's parameters that were set.
        arguments: of the compiled function, in order.
        results: the errors of a case's outputs.
        counters: Nsight Compute's counters by `evaluate.counts.COUNTER_NAMES` and, except in older captures,
            `inside.report.INSIDE_COUNTERS`; None if they were not collected.
    """

    kernel: Count
    grid: tuple[Extent, Extent, Extent]
    caller: Place
    config: Mapping[str, Any]
    tuned: Tuned | None
    ran: Literal[False, "cuda", "interpreter"]
    elapsed_ms: float | None
    case: str | None
    arguments: tuple[Argument, ...]
    results: Mapping[str, OutputErrors] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    counters: Mapping[str, Count] | None = None

    def find_tensor(self, names: Collection[str]) -> Tensor | None:
        """Return the first tensor among the arguments of the given names."""
        tensors = (each.own_tensor for each in self.arguments if each.name in names)
        return next(filter(None, tensors), None)


@dataclass(frozen=True)
class CapturedArray:
    why_missing: str


@dataclass(frozen=True)
class CapturedStorage:
    """Memory of a tensor.

    Attributes:
        address_bytes: its start, modulo 2**29.
    """

    bytes: Count
    address_bytes: Annotated[int, Field(ge=0, lt=1 << 29)]


@dataclass(frozen=True)
class Stop(Place):
    """Where and why a script stopped early.

    Attributes:
        kind: "host_read", "exit" or "exception".
        status: with which it exited.
    """

    kind: str
    message: str
    status: int = 0


@dataclass(frozen=True)
class Content:
    """The JSON of a capture.

    Attributes:
        gpu: the properties of the GPU for which the kernels were compiled.
        not_captured: a sentence for each kind of launch that could not be recorded.
        cases: the parameters, with defaults, of each of the script's cases.
        about: the script's docstring.
        package: the installed package with Triton, such as "triton-3.7.1"; "" in captures of earlier versions.
    """

    format: Literal[1]
    triton: str
    script: str
    gpu: Mapping[str, Any]
    stopped: Stop | None
    not_captured: tuple[str, ...]
    cases: Mapping[str, Mapping[str, Any]]
    kernels: tuple[CapturedKernel, ...]
    arrays: tuple[CapturedArray, ...]
    storages: tuple[CapturedStorage, ...]
    launches: tuple[CapturedLaunch, ...]
    about: str = ""
    package: str = ""

    @property
    def capability(self) -> int:
        """The GPU's compute capability, times ten."""
        major, minor = self.gpu["compute_capability"]
        return 10 * major + minor

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages of compilation after the TTIR."""
        return ("ttgir", "amdgcn") if self.not_modelled else ("ttgir", "ptx", "sass")

    @property
    def not_modelled(self) -> str:
        """A sentence that lists what is not modelled on the GPU; "" if Tilescope models it."""
        return _NOT_MODELLED if self.gpu.get("arch") else ""
