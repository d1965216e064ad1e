"""The body of /sweep: a sweep of a few configs, waited for."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kernels import discover
from kernels.experiment import JsonSchema, argument_schemas
from kernels.export.script import config_line
from kernels.knobs import ConfigError, read_fields
from kernels.results import Strategy, Sweep, SweepRow
from kernels.space import space
from visualize.views.endpoint import Api, answered, failure, from_payload, to_json
from visualize.views.tune.running_sweeps import RunningSweeps
from visualize.views.tune.sweep_options import SweepSearch, around

# Configs that one call may try: at 1.9 s of compiling each, six minutes on one core. The page and the command line,
# which can be cancelled, take more.
MOST_ASKED = 200

# Seconds after which a call leaves its sweep, and answers with what was found: under the interpreter a config takes up
# to 20 s.
LONGEST_S = 600.0

# How often a call looks whether its sweep has ended.
_LOOK_S = 0.2

# Each call takes part in its sweep for itself.
_CALLS = itertools.count()

_PREFIX = "sweep_"
_VARY: JsonSchema = {
    "type": "object",
    "additionalProperties": {"type": "array", "items": {"type": "integer"}},
    "description": f"Values by knob of the config; {MOST_ASKED} combinations at most. Default: tiles near its own.",
}
SCHEMAS = {
    "vary": _VARY,
    **argument_schemas(SweepSearch, _PREFIX),
}


async def answer(
    api: Api,
    sweeps: RunningSweeps,
    payload: object,
    vary: object,
    strategy: object,
    seed: object,
    budget: object,
    longest_s: float = LONGEST_S,
) -> dict[str, Any]:
    """Sweep, and wait for it."""
    try:
        base = from_payload(payload)
        given = {"strategy": strategy, "seed": seed, "budget": budget}
        view = read_fields(SweepSearch, given, "/sweep", prefix=_PREFIX)
        within = space(base, _object(vary) or around(base))
        if within.size > MOST_ASKED:
            raise ConfigError(
                "too_many_configs",
                f"{within.size:,} configs are asked for; /sweep takes at most {MOST_ASKED}. Vary fewer values, or "
                "use the page or app.py sweep.",
                "vary",
            )
        asked = Strategy(view.sweep_strategy, view.sweep_seed, view.sweep_budget or None)
        who = f"/sweep {next(_CALLS)}"
        with sweeps.followed(who):
            sweeping = await asyncio.to_thread(sweeps.start, api.session, within, asked, who)
            until = time.monotonic() + longest_s
            while not sweeping.has_ended:  # without a thread that would be waited for where the page is ended
                await asyncio.sleep(_LOOK_S)
                if time.monotonic() > until and sweeps.leave(sweeping, who):
                    break  # others take part in it: it goes on without this call
            found = sweeping.result() if sweeping.has_ended else sweeping.snapshot()
    except Exception as error:
        return to_json(failure(error))
    return await asyncio.to_thread(answered, lambda: reply(found))


def _object(vary: object) -> Mapping[str, Any]:
    if vary is None:
        return {}
    if isinstance(vary, Mapping):
        return {str(name): values for name, values in vary.items()}
    raise ConfigError("not_an_object", 'vary must be a JSON object of lists, such as {"BLOCK_M": [64, 128]}.', "vary")


def reply(found: Sweep) -> dict[str, Any]:
    """What a sweep found, the best config first, then those without a result in grid order."""
    ranked = {one.experiment for one in found.ranked}
    rest = [row for row in found.rows if row.experiment not in ranked]
    gpu, best = found.rows[0].device, found.best
    kernel = discover()[found.experiment.kernel]
    return {
        "gpu": gpu,
        "experiment": replace(found.experiment, gpu=gpu).to_json(),
        "vary": {name: list(values) for name, values in found.space.varied},
        "strategy": vars(found.strategy),
        "backend": found.backend,
        "device": vars(found.device),
        "rows": [_row(row, found) for row in (*found.ranked, *rest)],
        "best": replace(best.experiment, gpu=gpu).to_json() if best else None,
        "triton_config": config_line(kernel, best.experiment) if best else None,
        "baselines": [vars(one) for one in (found.final.baselines if found.final else ())],
        "ended": found.ended,
        "seconds": found.seconds,
        "note": found.note,
    }


def _row(row: SweepRow, found: Sweep) -> dict[str, Any]:
    predicted = row.predicted
    return {
        "config": {name: getattr(row.experiment.config, name) for name, _ in found.space.varied},
        "status": row.status,
        "reason": row.reason,
        "predicted_ms": predicted.ms if predicted else None,
        "predicted_resource": predicted.resource if predicted else None,
        **{name: getattr(row, name) for name in ("median_ms", "low_ms", "high_ms", "samples", "relative")},
        **{name: getattr(row, name) for name in ("registers", "spilled_bytes", "shared_bytes")},
    }
