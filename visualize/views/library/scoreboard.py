"""The recordings, and the scores of their predictions: the replies of /recorded and /scoreboard."""

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilescope.caching import once
from tilescope.declare.discovery import discover, read_text
from tilescope.declare.experiment import Experiment, Json, nest
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import knob
from tilescope.measure.session import MEASUREMENTS
from tilescope.numbers import Number, key_numbers
from tilescope.results import records
from tilescope.results.codec import to_json
from tilescope.results.records import Recording
from tilescope.results.scores import (
    TIMED_ON,
    Score,
    parse_scores,
    shipped_scores,
    stated_ranges,
    summarize,
    unseen_scores,
)
from visualize.views.panel import Api, Endpoint, encode, select_fields
from visualize.views.state import query

# The value of a filter that selects everything.
ALL = "all"

# The picture that shows a kind of recording. A kind without one opens the page's first picture.
TABS_BY_KIND = {
    "run": "result",
    "counters": "requests",
    "reuse": "dram-reads",
    "timeline": "program-order",
}


@dataclass(frozen=True)
class Entry:
    """One recording.

    Attributes:
        kind: the word of its kind.
        experiment: what was measured, on the GPU that measured it.
        numbers: its key numbers.
    """

    kind: str
    experiment: Experiment
    date: str
    numbers: tuple[Number, ...]


@dataclass(frozen=True)
class LaunchFilter:
    """The launches that a reply describes."""

    kernel: str = knob(ALL, "", "The kernel that was launched.", choices=(ALL, *discover()))
    gpu: str = knob(ALL, "", "The GPU that the kernel ran on.", choices=(ALL, *GPUS))

    def matches(self, kernel: str, gpu: str) -> bool:
        return self.kernel in (ALL, kernel) and self.gpu in (ALL, gpu)


@dataclass(frozen=True)
class RecordingFilter(LaunchFilter):
    """The recordings that a reply of /recorded holds."""

    kind: str = knob(ALL, "", "The kind of recording.", choices=(ALL, *TABS_BY_KIND))
    limit: int = knob(50, "", "Maximum number of recordings in a reply.", low=1, high=500)
    offset: int = knob(0, "", "Number of recordings to skip.", low=0, high=1_000_000)


def recorded_launch(recording: Recording[Any]) -> Experiment:
    """Return the recording's experiment on the GPU on which it was recorded."""
    return replace(recording.measured.experiment, gpu=recording.gpu)


def address(experiment: Experiment, kind: str) -> str:
    """Return the query that shows an experiment's result of a kind."""
    tab = {"tab": TABS_BY_KIND[kind]} if kind in TABS_BY_KIND else {}
    return query({**experiment.short_address(), **tab})


@once
def entries() -> tuple[Entry, ...]:
    """Return all recordings by kernel, kind and size."""
    rows = []
    for form in dict.fromkeys(measurement.form for measurement in MEASUREMENTS.values()):
        for recording in records.shipped(form):
            recorded = form.recall(recording.measured, recording.measured.experiment, "")
            rows.append(
                Entry(form.word, recorded_launch(recording), recording.date, key_numbers(recorded))
            )
    order = list(discover())
    return tuple(sorted(rows, key=lambda row: order.index(row.experiment.kernel)))


def _recorded(_: Api, options: RecordingFilter) -> Json:
    """Lists recordings from real GPUs: all of them, or those of one kernel, GPU or kind.

    `recorded` has, per recording, its kind, experiment, GPU, date, main numbers with units, and the page's
    address that shows it. `total` counts the whole list. A reply holds `limit` recordings, from `offset` on.
    """
    rows = [
        entry
        for entry in entries()
        if options.matches(entry.experiment.kernel, entry.experiment.gpu)
        and options.kind in (ALL, entry.kind)
    ]
    return {
        "total": len(rows),
        "limit": options.limit,
        "offset": options.offset,
        "recorded": [
            {
                "kind": row.kind,
                "experiment": row.experiment.short_json(),
                "gpu": row.experiment.gpu,
                "date": row.date,
                "numbers": [vars(number) for number in row.numbers],
                "address": address(row.experiment, row.kind),
            }
            for row in rows[options.offset : options.offset + options.limit]
        ],
    }


RECORDED = Endpoint("recorded", _recorded, options=RecordingFilter)

# The scores of our kernels' recordings, in the package of kernels: predicting every launch takes too long for a page
# view. `python -m scripts.predict_records` writes the file, and tests/tilescope/oracle checks it.
FILE = "scores.jsonl"

DRAM = "dram_bytes"
# The quantities of a recorded launch.
COUNTS = ("sectors", "requests", DRAM)
# The quantities of a source line and opcode that accesses shared memory.
LINE_COUNTS = ("executions", "wavefronts", "ideal_wavefronts")


@dataclass(frozen=True)
class Model:
    """A predicted quantity.

    Attributes:
        noun: its values, in the plural.
        origin: what they are predicted from.
        source: what they are compared with.
        axis: its unit on the picture's axes.
        unit: as in `numbers.format_number`.
        allowed: a prediction is a miss if its error exceeds this fraction of the count.
        verb: how the GPU's value was obtained.
    """

    noun: str
    origin: str
    source: str
    axis: str
    unit: str = ""
    allowed: float = 0.0
    verb: str = "counted"


_LAYOUTS = "index arithmetic and layouts"
_LINES = "the executed SASS, per line"
_NSIGHT = "Nsight Compute"


def _time(noun: str, origin: str) -> Model:
    return Model(noun, origin, "times with a cold L2", "µs", "µs", 0.25, "measured")


MODELS = {
    "sectors": Model("sector counts", _LAYOUTS, _NSIGHT, "32-byte sectors"),
    "requests": Model("request counts", _LAYOUTS, _NSIGHT, "warp requests"),
    DRAM: Model("DRAM reads", "reuse distances", _NSIGHT, "bytes read", "bytes", 0.2),
    "executions": Model("shared-memory executions", _LINES, _NSIGHT, "executions"),
    "wavefronts": Model("shared-memory wavefronts", _LINES, _NSIGHT, "wavefronts"),
    "ideal_wavefronts": Model("ideal wavefronts", _LINES, _NSIGHT, "wavefronts"),
    "instructions": Model("instruction counts", "the executed SASS", _NSIGHT, "instructions"),
    "unseen_time": _time("times of unseen kernels", "constants of other kernels"),
    "examined_time": _time("times of examined kernels", "constants of other kernels"),
    "held_out_time": _time("times of held-out families", "constants of other families"),
    "time": _time("times of fitted families", "constants fitted to them, too"),
}


# Of the launches of other kernels with counts per source line.
_SHARED_SOURCE = (
    "an H100 80GB HBM3 (driver 580.159.04), by Nsight Compute 2025.3.1 with Triton 3.6.0"
)


@dataclass(frozen=True)
class ScoreFilter(LaunchFilter):
    """The scores that a reply of /scoreboard holds."""

    count: str = knob(ALL, "", "The count to compare.", choices=(ALL, *COUNTS))


@once
def scores_by_model() -> Mapping[str, list[Score]]:
    """Return the scores of our kernels' recordings, and those of other kernels."""
    scores = defaultdict[str, list[Score]](list)
    for score in (*parse_scores(read_text(FILE)), *shipped_scores()):
        scores[score.model].append(score)
    return scores


def kernel_of(score: Score) -> str:
    """Return the ID of our kernel, or the family of another one."""
    return str(score.launch.get("family", score.launch["kernel"]))


def select_scores(model: str, part: LaunchFilter) -> list[Score]:
    """Return the scores of a model for a kernel and a GPU."""
    return [
        score
        for score in scores_by_model()[model]
        if part.matches(kernel_of(score), score.launch["gpu"])
    ]


def is_miss(score: Score) -> bool:
    return abs(score.error) > MODELS[score.model].allowed


def score_address(score: Score) -> str:
    """Return the query that shows a score's launch; "" for a launch of another kernel."""
    if "family" in score.launch:
        return ""
    return query({**score.launch, "tab": "dram-reads" if score.model == DRAM else "requests"})


def launch_address(score: Score) -> str:
    return query(score.launch)


def launch_key(launch: Json, model: str) -> str:
    """Name a launch. DRAM reads are recorded for several GROUP_SIZEs of one launch."""
    named = {name: each for name, each in launch.items() if (name, model) != ("GROUP_SIZE", DRAM)}
    return query({**named, "is_dram": model == DRAM})


def count_launches(scores: Iterable[Score]) -> int:
    return len({launch_key(score.launch, score.model) for score in scores})


def list_gpus(scores: Iterable[Score]) -> list[str]:
    return sorted({score.launch["gpu"] for score in scores})


@functools.lru_cache(maxsize=4)
def compare_scores(part: ScoreFilter) -> bytes:
    """Return the reply of /scoreboard. Without filters, it takes a second."""
    counts = [count for count in COUNTS if part.count in (ALL, count)]
    compared: list[Score] = []
    lower_bounds: list[Score] = []
    totals = {}
    for count in counts:
        scores = select_scores(count, part)
        lower_bounds += [score for score in scores if not score.is_compared]
        if scores := [score for score in scores if score.is_compared]:
            totals[count] = _total(scores)
            compared += scores
    launches = {launch_address(score): score.launch for score in (*compared, *lower_bounds)}
    indices = {address: index for index, address in enumerate(launches)}

    def points(scores: Iterable[Score]) -> list[Json]:
        return [
            {
                "launch": indices[launch_address(score)],
                "operation": score.part,
                "count": score.model,
                **select_fields(score, "predicted", "counted", "error"),
                "flagged": score.is_flagged,
                "address": score_address(score),
            }
            for score in scores
        ]

    misses = sorted(filter(is_miss, compared), key=lambda score: -abs(score.error))
    return encode(
        {
            "totals": totals,
            "launches": [
                {"experiment": _short_json(launch), "gpu": launch["gpu"]}
                for launch in launches.values()
            ],
            "points": points(compared),
            "misses": points(misses),
            "left_out": {
                "lower_bounds": points(lower_bounds),
                "not_predicted": [
                    _short_json(launch)
                    for launch in unpredicted()
                    if part.matches(launch["kernel"], launch["gpu"])
                ],
            },
            "shared_memory": compare_shared(scores_by_model()),
            "times": _compare_times(),
        }
    )


def _total(scores: Sequence[Score]) -> Json:
    return {
        "compared": len(scores),
        "misses": sum(map(is_miss, scores)),
        "exact": sum(not score.error for score in scores),
        "launches": count_launches(scores),
        "gpus": list_gpus(scores),
        "median_error": summarize(scores).median,
    }


def _short_json(launch: Json) -> Json:
    """Return a launch of ours as `Experiment.short_json`."""
    return {name: value for name, value in nest(launch).items() if value}


@once
def unpredicted() -> list[Json]:
    """Return the recorded launches without a score."""
    own = (score for count in COUNTS for score in scores_by_model()[count])
    known = {launch_key(score.launch, score.model) for score in own}
    models = {"counters": "sectors", "reuse": DRAM}
    launches = [
        (entry.experiment.short_address(), models[entry.kind])
        for entry in entries()
        if entry.kind in models
    ]
    return [launch for launch, model in launches if launch_key(launch, model) not in known]


def compare_shared(by_model: Mapping[str, list[Score]]) -> Json:
    """Compare the executed instructions, and the counts of each source line that accesses shared memory."""
    scores = [
        score
        for model in (*LINE_COUNTS, "instructions")
        for score in by_model[model]
        if score.is_compared
    ]
    lines = [score for score in scores if score.part]
    others = [score for score in scores if not score.part]

    def agreement(name: str, scores: Iterable[Score], key: Callable[[Score], object]) -> Json:
        keys = set(map(key, scores))
        wrong = {key(score) for score in scores if score.error}
        return {name: len(keys), f"exact_{name}": len(keys - wrong)}

    return {
        "source": _SHARED_SOURCE,
        **agreement("lines", lines, lambda score: (launch_address(score), score.part)),
        **agreement("launches", lines, launch_address),
        **agreement("instructions", others, launch_address),
        "differences": [
            {
                **{name: score.launch[name] for name in ("family", "case", "kernel")},
                "count": f"{score.part}, {score.model.replace('_', ' ')}"
                if score.part
                else "executed instructions",
                **select_fields(score, "predicted", "counted", "why"),
            }
            for score in scores
            if score.error
        ],
    }


def _compare_times() -> Json:
    unfitted = (*scores_by_model()["unseen_time"], *scores_by_model()["examined_time"])
    times = (*scores_by_model()["time"], *unfitted)
    held_out = (*scores_by_model()["held_out_time"], *unfitted)
    return {
        "source": TIMED_ON,
        **to_json(summarize(unseen_scores())),
        "ranges": {name: to_json(each) for name, each in stated_ranges().items()},
        "scores": [
            {
                **{"spilled_bytes": 0, "grid": [], "config": {}},
                **score.launch,
                "measured_us": score.counted,
                "predicted_us": score.predicted,
                "unseen_us": other.predicted,
                "bound_by": score.part,
                "why": score.why,
            }
            for score, other in zip(times, held_out, strict=True)
        ],
    }
