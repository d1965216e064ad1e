"""Explain which launches share a compiled kernel, and try to merge variants that the values of integers cause."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from tilescope.advice.experiments import (
    Attempt,
    Candidate,
    Change,
    Compiler,
    Trial,
    TrialRunner,
    run_trials,
)
from tilescope.advice.ttir_edits import Module
from tilescope.captures.content import TIME, Content, Specialization
from tilescope.captures.listings import UnsupportedOperation, isolate
from tilescope.numbers import count_noun, join_names, milliseconds
from tilescope.timing.changes import LEAST_SAVING

# The kinds of specialization that `do_not_specialize` disables.
_BY_VALUE = ("divisible by 16", "equal to 1")
# See `Candidate.share`.
_SHARE = -1.0


@dataclass(frozen=True)
class Variant:
    """A compiled version of a kernel.

    Attributes:
        launches: their numbers.
        specializations: those that the kernel's variants do not share.
    """

    launches: tuple[int, ...]
    specializations: tuple[Specialization, ...]


@dataclass(frozen=True)
class KernelVariants:
    """A kernel with more than one compiled version.

    Attributes:
        source, line: where it is defined.
    """

    kernel: str
    source: str
    line: int
    variants: tuple[Variant, ...]

    @property
    def launches(self) -> list[int]:
        return sorted(chain(*(variant.launches for variant in self.variants)))


def find_variants(content: Content) -> tuple[KernelVariants, ...]:
    """Return the kernels of a capture that Triton compiled more than once."""
    groups = defaultdict[Any, Any](lambda: defaultdict(list))
    for number, launch in enumerate(content.launches):
        kernel = content.kernels[launch.kernel]
        groups[kernel.name, kernel.file, kernel.line][launch.kernel].append(number)
    found = []
    for (name, file, line), launches in groups.items():
        own = [content.kernels[number].specializations for number in launches]
        shared = set(own[0]).intersection(*own)
        variants = (
            Variant(tuple(numbers), tuple(each for each in every if each not in shared))
            for numbers, every in zip(launches.values(), own, strict=True)
        )
        if len(own) > 1 and shared:  # a capture of an earlier version has none
            found.append(KernelVariants(name, Path(file).name, line, tuple(variants)))
    return tuple(found)


def merge_variants(
    kernels: Iterable[KernelVariants],
    runners: Sequence[TrialRunner],
    compiler: Compiler,
    most_seconds: float,
) -> None:
    """Try to merge variants that differ only in the values of integers. Add the costs to the facts about launches.

    Args:
        runners: of each launch. Equal launches have one.
        most_seconds: see `make_trials`.
    """
    for kernel in kernels:
        every = chain(*(variant.specializations for variant in kernel.variants))
        names = sorted({each.argument for each in every if each.kind in _BY_VALUE})
        own = dict.fromkeys(runners[number] for number in kernel.launches)
        seconds = sum(runner.trial_s for runner in own)
        if seconds <= most_seconds:
            most_seconds -= seconds
            found = _try_merge(kernel, names, runners, compiler)
            if not all(each.is_advised for each in found):
                parts = (_try_merge(kernel, [name], runners, compiler) for name in names)
                found = [each for each in chain(*parts) if each.is_advised] or found
            for runner in own:
                runner.choices += [[each] for each in found]


@isolate(lambda why, *_: [])
def _try_merge(
    kernel: KernelVariants,
    names: Sequence[str],
    runners: Sequence[TrialRunner],
    compiler: Compiler,
) -> list[Candidate]:
    """Return the cost of not specializing on arguments' values; [] if this merges nothing or the cost is unknown."""
    groups = defaultdict[Any, list[int]](list)
    for variant in kernel.variants:
        others = (
            each
            for each in variant.specializations
            if each.kind not in _BY_VALUE or each.argument not in names
        )
        groups[frozenset(others)] += variant.launches
    # Variants without a difference have different code, or use other global constants.
    distinct = {variant.specializations for variant in kernel.variants}
    if not len(groups) < len(distinct) == len(kernel.variants):
        return []
    attempts = dict[TrialRunner, Attempt]()
    for numbers in groups.values():
        # An argument that is equal to 1 is no argument of the compiled function.
        merged = [runners[number] for number in numbers]
        whole = max(merged, key=lambda runner: len(runner.launch.arguments))
        attempts |= {runner: _merge_launch(runner, whole, names) for runner in merged}
    run_trials(compiler, attempts.values())
    tried = [attempts[runners[number]] for number in kernel.launches]
    times = [each.runner.compare_times(each.trial) for each in tried]
    if not all(after for _, after in times):
        return []
    before_ns, after_ns = (sum(each[TIME] for each in own) for own in zip(*times, strict=True))
    cost = after_ns / before_ns - 1
    pays = cost > LEAST_SAVING
    verdict = "pays" if pays else "does not pay"
    text = (
        f"Specializing on the values of {join_names(names)} {verdict}: with do_not_specialize={json.dumps(names)}, "
        f"all {len(tried)} launches share {count_noun(len(groups), 'kernel')} instead of {len(distinct)}. "
        f"Tried: predicted time {milliseconds(before_ns / 1e6)} → {milliseconds(after_ns / 1e6)} ({cost:+z.1%})."
    )
    return [Candidate("variants", text, share=_SHARE, is_advised=not pays)]


def _merge_launch(runner: TrialRunner, whole: TrialRunner, names: Collection[str]) -> Attempt:
    """Prepare a launch with another launch's kernel, in which arguments are not specialized."""
    own = {each.name: each for each in runner.launch.arguments}
    arguments = tuple(own.get(each.name, replace(each, value=1)) for each in whole.launch.arguments)
    launch = replace(runner.launch, kernel=whole.launch.kernel, arguments=arguments)
    merged = TrialRunner(runner.capture, launch, runner.counts, runner.inside, 1)
    numbers = (n for n, each in merged.arguments.items() if each.name in names)
    edits = tuple((Module.declare_any, number) for number in numbers)
    if len(edits) < len(names):
        raise UnsupportedOperation("Some of the arguments are not in the TTIR.")
    return Attempt(merged, Candidate("variants", ""), Trial([Change("", edits=edits)]))
