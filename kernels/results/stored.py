"""The store's contents as values: results without recordings, sweeps without rows, and experiment keys."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import Any

from kernels import discover
from kernels.experiment import Experiment, from_json
from kernels.results import Measured, RunResult, Timeline, codec
from kernels.results.records import RecordForm

Json = dict[str, Any]


@dataclass(frozen=True)
class KnownResult:
    """A result and the time when this machine stored it; None if it was shipped or measured by this process."""

    value: Any
    ended: datetime.datetime | None = None


@dataclass(frozen=True)
class ResultFilter:
    """A filter for listing results. An empty field matches everything.

    Attributes:
        keys: values of `experiment_key`.
        device: the device's own name.
    """

    kinds: tuple[str, ...] = ()
    kernel: str = ""
    device: str = ""
    keys: tuple[str, ...] = ()

    def where(self) -> tuple[str, list[str]]:
        """Return the SQL condition with placeholders, and the placeholders' values."""
        single = {"kernel": self.kernel, "device": self.device}
        allowed = {"kind": self.kinds, "key": self.keys, **{name: (value,) for name, value in single.items() if value}}
        terms = [f"{column} IN ({', '.join('?' * len(values))})" for column, values in allowed.items() if values]
        return " AND ".join(terms) or "1", [value for values in allowed.values() for value in values]


@dataclass(frozen=True)
class Summary:
    """A result's entry in a listing. A field is None if the kind of measurement lacks it, or without timing.

    Attributes:
        median_ms, p20_ms, p80_ms, samples: the kernel's time.
        ratio, ratio_low, ratio_high: the library's time divided by the kernel's, with the 95 % interval.
        passed: whether the output was correct.
    """

    median_ms: float | None = None
    p20_ms: float | None = None
    p80_ms: float | None = None
    samples: int | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    passed: bool | None = None


@dataclass(frozen=True)
class StoredResult:
    """A result without its recording.

    Attributes:
        number: later results have higher numbers.
        kind: the name of the measurement.
        gpu: the GPU that ran the measurement; for the interpreter, the GPU that predictions are for.
        device, backend, torch, triton: as in results.Device.
        ended: UTC.
        experiment: None if this version lacks the kernel or rejects a value.
    """

    number: int
    kind: str
    kernel: str
    gpu: str
    device: str
    backend: str
    torch: str
    triton: str
    ended: datetime.datetime
    experiment: Experiment | None
    summary: Summary


@dataclass(frozen=True)
class StoredSweep:
    """A sweep without its rows.

    Attributes:
        name: its unique id, chosen by its writer.
        space: the identity of its space.
        gpu, triton: the GPU that times its configs, and the Triton version that compiles them.
        began: UTC.
        state: "running" until its end is recorded.
        details: the sweep as JSON.
        total, done: number of configs, and how many of them are done.
        best_ms: the fastest config's time; None before the first timing.
        changes: number of writes so far. An equal number means equal content.
    """

    name: str
    kernel: str
    space: str
    gpu: str
    triton: str
    began: datetime.datetime
    state: str
    details: Json
    total: int = 0
    done: int = 0
    best_ms: float | None = None
    changes: int = 0


def experiment_text(experiment: Experiment) -> str:
    """Return the kernel and all values that differ from its defaults, without the GPU, as JSON with sorted names.

    Published defaults never change, so adding a knob to a kernel does not change the texts of earlier results.
    """
    fields = experiment.to_json()
    fields.pop("gpu", None)
    for part, defaults in _defaults(experiment.kernel).items():
        fields[part] = {name: value for name, value in fields[part].items() if defaults.get(name) != value}
    return json.dumps({name: value for name, value in fields.items() if value}, sort_keys=True, separators=(",", ":"))


def experiment_key(experiment: Experiment) -> str:
    """Return a 128-bit hash in hexadecimal that identifies an experiment regardless of GPU, process and version."""
    return hashlib.blake2b(experiment_text(experiment).encode(), digest_size=16).hexdigest()


def read_experiment(text: str) -> Experiment | None:
    """Parse `experiment_text`. Return None if this version lacks the kernel or rejects a value."""
    try:
        return from_json(json.loads(text), discover())
    except ValueError:
        return None


@functools.cache
def _defaults(kernel: str) -> dict[str, Json]:
    fields = from_json({"kernel": kernel}, discover()).to_json()
    return {part: fields[part] for part in ("problem", "config", "run")}


def _summarize(measured: Measured) -> Summary:
    if isinstance(measured, RunResult):
        timing, baseline, passed = measured.timing, measured.baseline, measured.check.passed
    elif isinstance(measured, Timeline):
        timing, baseline, passed = measured.plain, None, measured.passed
    else:
        return Summary()
    times = {name: getattr(timing, name, None) for name in ("median_ms", "p20_ms", "p80_ms", "samples")}
    ratios = {name: getattr(baseline, name, None) for name in ("ratio", "ratio_low", "ratio_high")}
    return Summary(**times, **ratios, passed=passed)


RESULT_COLUMNS = "number, kind, kernel, gpu, device, backend, torch, triton, ended, experiment, summary"


def result_row(kind: str, form: RecordForm[Any], gpu: str, measured: Measured, ended: datetime.datetime) -> Json:
    """Return a result as a row, by column name. For the arguments, see Store.put."""
    experiment, device = dataclasses.replace(measured.experiment, gpu=""), measured.device
    recorded = codec.to_json(form.compact(dataclasses.replace(measured, experiment=experiment)), omit_defaults=True)
    return {
        **{"kind": kind, "kernel": experiment.kernel, "key": experiment_key(form.key(experiment)), "gpu": gpu},
        **{"device": device.name, "backend": device.backend, "torch": device.torch, "triton": device.triton},
        "ended": ended.astimezone(datetime.UTC).isoformat(timespec="seconds"),
        "experiment": experiment_text(experiment),
        "summary": json.dumps(vars(_summarize(measured))),
        "recording": zlib.compress(json.dumps(recorded).encode()),
    }


def read_result(*row: Any) -> StoredResult:
    """Convert a row of RESULT_COLUMNS to a result."""
    *fields, ended, experiment, summary = row
    fields += [datetime.datetime.fromisoformat(ended), read_experiment(experiment), Summary(**json.loads(summary))]
    return StoredResult(*fields)
