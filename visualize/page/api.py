"""The API: each panel's work as a named endpoint. One wrapper validates, converts and catches for all."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import traceback
from collections.abc import Callable
from typing import Any

import gradio as gr
import numpy as np

from kernels import discover, experiment
from kernels.experiment import Experiment, resolved_gpu
from kernels.gpus import GPUS, Gpu
from kernels.knobs import ConfigError, Knob, knobs
from kernels.results import Compiled, Failure, Measured, RunResult
from kernels.runner.session import Session
from kernels.spec import Kernel, Launch
from visualize.panels import coalescing_tab, compiler_tab, reuse_tab, schedule_tab
from visualize.text import run_report


def endpoints(session: Session) -> None:
    """Register all endpoints; call inside a Blocks context."""

    def kernels() -> dict[str, Any]:
        """Every kernel with its knobs and problem fields, the GPU table, and this machine's GPU or null."""
        return answered(lambda: _kernels(session.gpu))

    async def schedule_of(experiment: dict[str, Any]) -> dict[str, Any]:
        """Which program computes which tile, waves, and the blocks that the first n programs load."""
        return await compiled(experiment, schedule_tab.reply, or_not=True)

    async def reuse_of(experiment: dict[str, Any]) -> dict[str, Any]:
        """Bytes that reach DRAM, for this order and for every GROUP_SIZE, and what each resource needs by itself."""

        def body(kernel: Kernel, chosen: Experiment, gpu: Gpu, made: Compiled | Failure) -> dict[str, Any]:
            return reuse_tab.reply(kernel, chosen, gpu, made, session.known(chosen, "reuse"))

        return await compiled(experiment, body, or_not=True)

    async def coalescing_of(
        experiment: dict[str, Any], model: str = "compiled", textbook: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Requests, sectors, lines and ideal sectors of each memory operation over the launch, as compiled.

        Or with model "textbook", whose machine can be given.
        """
        try:
            if coalescing_tab.model_of(model) == "textbook":
                return predicted(
                    experiment, session.gpu, lambda k, e, gpu: coalescing_tab.textbook_reply(k, e, gpu, textbook)
                )
        except ConfigError as error:
            return to_json(_failure(error).to_json())

        def body(kernel: Kernel, chosen: Experiment, gpu: Gpu, made: Compiled) -> dict[str, Any] | Failure:
            return coalescing_tab.compiled_reply(kernel, chosen, gpu, made, session.known(chosen, "counters"))

        return await compiled(experiment, body)

    async def compile_of(experiment: dict[str, Any]) -> dict[str, Any]:
        """What the compiler makes of it for any GPU: registers, shared memory, occupancy, TTGIR, PTX and SASS."""
        return await compiled(
            experiment,
            lambda _, chosen, gpu, made: compiler_tab.reply(Launch(chosen.problem, chosen.config, gpu), made),
        )

    async def compiled(
        experiment: object,
        body: Callable[[Kernel, Experiment, Gpu, Any], dict[str, Any] | Failure],
        or_not: bool = False,
    ) -> dict[str, Any]:
        """Compile, then answer with what `body` makes of it; `or_not`: or of the Failure, where it can't be."""
        try:
            chosen = from_payload(experiment)
            outcome = await asyncio.to_thread(session.compiled, chosen)
        except Exception as error:
            return to_json(_failure(error).to_json())
        if isinstance(outcome, Failure) and not or_not:
            return to_json(outcome.to_json())
        return predicted(experiment, session.gpu, lambda kernel, e, gpu: body(kernel, e, gpu, outcome))

    async def counters(experiment: dict[str, Any]) -> dict[str, Any]:
        """What Nsight Compute counts of a launch: requests, sectors and DRAM bytes; without a GPU as recorded."""
        return await submitted(experiment, "counters")

    async def layouts(experiment: dict[str, Any]) -> dict[str, Any]:
        """One product with B as given, stored the other way, and turned first; without a GPU as it was recorded."""
        return await submitted(experiment, "layouts")

    async def timeline(experiment: dict[str, Any]) -> dict[str, Any]:
        """On which SM each program of a launch ran, and from when to when; without a GPU as it was recorded."""
        return await submitted(experiment, "timeline")

    async def run(experiment: dict[str, Any]) -> dict[str, Any]:
        """Run the experiment on this machine: check it against torch, and time it beside torch where there is a GPU."""
        return await submitted(experiment, "run")

    async def submitted(experiment: object, what: str) -> dict[str, Any]:
        try:
            job = session.submit(from_payload(experiment), what)
        except Exception as error:
            return to_json(_failure(error).to_json())
        # Waits without a thread: many may wait for their turn, and the page must stay quick.
        outcome = await asyncio.wrap_future(job.done)
        return answered(lambda: _run_reply(outcome, session.gpu))

    for function, name, limit in (
        (kernels, "kernels", "default"),
        (schedule_of, "schedule", 4),
        (reuse_of, "reuse", 4),
        (coalescing_of, "coalescing", 4),
        (run, "run", None),  # the session has a queue of its own
        (layouts, "layouts", None),
        (counters, "counters", None),
        (timeline, "timeline", None),
        (compile_of, "compile", 4),
    ):
        gr.api(function, api_name=name, concurrency_limit=limit)


def answered(body: Callable[[], dict[str, Any] | Failure]) -> dict[str, Any]:
    """Call `body`; what is wrong with the arguments, and any defect of ours, becomes a failure in the reply."""
    try:
        reply = body()
    except Exception as error:
        reply = _failure(error)
    return to_json(reply.to_json() if isinstance(reply, Failure) else reply)


def _failure(error: Exception) -> Failure:
    """A sentence for the client, never a stack trace; that of a defect of ours goes to the log."""
    if isinstance(error, ConfigError):
        return Failure("config", error.kind, str(error))
    traceback.print_exception(error)
    return Failure("config", "internal_error", f"Tilescope failed on this: {type(error).__name__}.")


def predicted(
    payload: object, this: Gpu | None, body: Callable[[Kernel, Experiment, Gpu], dict[str, Any] | Failure]
) -> dict[str, Any]:
    """A model's reply to an experiment, with the experiment and the resolved GPU in it."""

    def reply() -> dict[str, Any] | Failure:
        chosen = from_payload(payload)
        gpu = resolved_gpu(chosen, this)
        resolved = dataclasses.replace(chosen, gpu=gpu.name)
        found = body(discover()[chosen.kernel], chosen, gpu)
        if isinstance(found, Failure):
            return found
        return {"gpu": gpu.name, "experiment": resolved.to_json(), **found}

    return answered(reply)


def _run_reply(outcome: Measured | Failure, this: Gpu | None) -> dict[str, Any] | Failure:
    if isinstance(outcome, Failure):
        return outcome
    if not isinstance(outcome, RunResult):
        return {"gpu": resolved_gpu(outcome.experiment, this).name, **outcome.to_json()}
    kernel, chosen = discover()[outcome.experiment.kernel], outcome.experiment
    launch = Launch(chosen.problem, chosen.config, resolved_gpu(chosen, this))
    note = " ".join([outcome.note, *run_report.remarks(outcome, kernel, launch)])
    return {"gpu": launch.gpu.name, **outcome.to_json(), "note": note}


def from_payload(payload: object) -> Experiment:
    """The experiment of a request."""
    return experiment.from_json(payload, discover())


def _kernels(this: Gpu | None) -> dict[str, Any]:
    return {
        "kernels": [
            {
                "id": kernel.id,
                "family": kernel.family.id,
                "title": kernel.title,
                "claim": kernel.claim,
                "knobs": [_knob(name, knob) for name, knob in knobs(kernel.config).items()],
                "problem": [_knob(name, knob) for name, knob in kernel.problem_knobs().items()],
                "presets": [dataclasses.asdict(preset) for preset in kernel.presets],
            }
            for kernel in discover().values()
        ],
        "gpus": list(GPUS),
        "gpu_table": {name: dataclasses.asdict(gpu) for name, gpu in GPUS.items()},
        "device": None if this is None else dataclasses.asdict(this),
    }


def _knob(name: str, knob: Knob) -> dict[str, Any]:
    allowed = {"range": [knob.low, knob.high]} if knob.choices is None else {"choices": list(knob.choices)}
    return {"name": name, "default": knob.default, "help": knob.help, **allowed}


def to_json(value: Any) -> Any:
    """Plain JSON: NumPy numbers converted; NaN and infinity null, with their count beside them as `not_finite`."""
    if isinstance(value, dict):
        plain = {str(key): to_json(item) for key, item in value.items()}
        lost = sum(_count_not_finite(item) for item in value.values())
        return {**plain, "not_finite": lost} if lost else plain
    if isinstance(value, np.ndarray):
        return to_json(value.tolist())
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, np.generic):
        return to_json(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _count_not_finite(value: Any) -> int:
    """Numbers that became null, in `value` itself or in lists in it (an inner object counts its own)."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return sum(_count_not_finite(item) for item in value)
    return int(isinstance(value, float) and not math.isfinite(value))
