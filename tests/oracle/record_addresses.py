"""Run kernels in Triton's interpreter and record every address that they load and store.

Run as a process: `TRITON_INTERPRET=1 python record_addresses.py OUT < CASES`. CASES is a JSON list of [kernel, problem,
config, SMs]. OUT gets a pickled list per case: (op, tensor, source, program, element offsets, mask) of each execution.
"""

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from triton.runtime import interpreter

import kernels as package
from kernels import discover
from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.measuring.interpreter import patch_language_once
from kernels.spec import Launch

ROOT = Path(package.__file__).parent.parent


class Recorder:
    """Triton's native part of the interpreter. Records each access before it is executed."""

    def __init__(self, native):
        self.native = native

    def __getattr__(self, name):
        return getattr(self.native, name)

    def load(self, pointers, mask, *rest):
        self.record("load", pointers, mask)
        return self.native.load(pointers, mask, *rest)

    def store(self, pointers, values, mask):
        self.record("store", pointers, mask)
        return self.native.store(pointers, values, mask)

    def atomic_rmw(self, operation, pointers, values, mask, *rest):
        self.record("atomic", pointers, mask)
        return self.native.atomic_rmw(operation, pointers, values, mask, *rest)

    def record(self, op, pointers, mask):
        addresses = pointers.astype(np.int64).ravel()
        active = np.broadcast_to(mask, pointers.shape).ravel().astype(bool)
        inside = addresses[active] if active.any() else addresses[:1]
        starts = {name: (tensor.data_ptr(), tensor.nbytes) for name, tensor in self.tensors.items()}
        (name,) = (
            n
            for n, (start, size) in starts.items()
            if ((start <= inside) & (inside < start + size)).all()
        )
        if name in self.flags:  # the number of exchanges depends on timing
            return
        frame = sys._getframe()
        while not Path(frame.f_code.co_filename).is_relative_to(ROOT / "kernels"):
            op = "descriptor" if frame.f_code.co_name.startswith("create_descriptor_") else op
            frame = frame.f_back
        source = (str(Path(frame.f_code.co_filename).relative_to(ROOT)), frame.f_lineno)
        builder = interpreter.interpreter_builder
        (x, y, z) = builder.grid_idx
        (grid_x, grid_y, _) = builder.grid_dim
        offsets, rest = np.divmod(addresses - starts[name][0], self.tensors[name].itemsize)
        assert not rest.any()
        self.executions.append(
            (op, name, source, x + y * grid_x + z * grid_x * grid_y, offsets, active)
        )

    def launch(self, kernel, launch):
        self.executions = []
        self.tensors = {}
        self.flags = {name for name, spec in kernel.tensors(launch).items() if spec.starts_zeroed}
        for name, spec in kernel.tensors(launch).items():
            stored = torch.zeros(spec.stored, dtype=getattr(torch, spec.dtype_in(launch.problem)))
            self.tensors[name] = stored.t() if spec.transposed else stored
        kernel.jitted[kernel.grid(launch)](**kernel.arguments(self.tensors, launch))
        return self.executions


def main():
    patch_language_once()
    recorder = interpreter._interpreter = Recorder(interpreter._interpreter)
    results = []
    for name, problem, config, sms in json.load(sys.stdin):
        experiment = from_json({"kernel": name, "problem": problem, "config": config})
        launch = Launch(experiment.problem, experiment.config, replace(GPUS["H200"], sms=sms))
        results.append(recorder.launch(discover()[name], launch))
    Path(sys.argv[1]).write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    main()
