"""List what the installed compiler makes differently of the atlas' launches: `python -m scripts.compare_compilers`.

The models are tested on the facts that were recorded with the counts. This says how far those are from the facts of the
Triton that is installed here. No GPU is needed; it compiles every launch, which takes minutes.
"""

from __future__ import annotations

import collections
import os
import sys
import tempfile

from kernels.lanes import CompiledFacts


def main() -> int:
    """Compile all, print each difference and a summary; returns the number of launches that could not be compiled."""
    from kernels.compiling.compiler import compile_experiment
    from kernels.gpus import GPUS
    from kernels.measuring.measurements.counters_measurement import COUNTERS
    from kernels.measuring.processes import Workers, outcome
    from kernels.results import Compiled, records

    atlas = [(one.gpu, one.measured) for one in records.shipped(COUNTERS.form)]
    summary: collections.Counter[str] = collections.Counter()
    failed = 0
    with tempfile.TemporaryDirectory() as cache:
        workers = Workers("compile", cache, count=os.cpu_count() or 1)
        try:
            calls = [workers.submit(compile_experiment, "compile", one.experiment, GPUS[gpu]) for gpu, one in atlas]
            for (_, recorded), call in zip(atlas, calls, strict=True):
                experiment, made = recorded.experiment, outcome(call, "compile")
                if not isinstance(made, Compiled):
                    failed += 1
                    print(f"{experiment.to_json()}: {made.message}", file=sys.stderr)
                    continue
                found = _differences(recorded.compiled, made.facts)
                summary.update(found.keys() or ["nothing"])
                if found:
                    print(experiment.kernel, vars(experiment.problem), vars(experiment.config))
                    for what, (then, now) in found.items():
                        print(f"    {what}: {then} → {now}")
        finally:
            workers.close()
    versions = {recorded.device.triton for _, recorded in atlas}
    print(f"Recorded with Triton {', '.join(sorted(versions))}; of {len(atlas)} launches, by what differs:")
    for what, count in summary.most_common():
        print(f"    {what}: {count}")
    return failed


def _differences(then: CompiledFacts, now: CompiledFacts) -> dict[str, tuple[object, object]]:
    """What two compilers made of one launch, where it is not the same."""
    pairs: dict[str, tuple[object, object]] = {
        name: (getattr(then, name), getattr(now, name)) for name in ("registers", "spilled_bytes", "shared_bytes")
    }
    for place, (a, b) in enumerate(zip(then.operations, now.operations, strict=True)):
        pairs[f"kind of operation {place}"] = a.op, b.op
        pairs[f"width of operation {place}"] = a.width_bytes, b.width_bytes
        pairs[f"layout of operation {place}"] = a.layout, b.layout
    return {what: pair for what, pair in pairs.items() if pair[0] != pair[1]}


if __name__ == "__main__":
    sys.exit(main())
