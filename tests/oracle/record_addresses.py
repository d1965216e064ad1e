"""Run kernels under Triton's interpreter and write down every address that they load and store.

A process of its own: `TRITON_INTERPRET=1 python record_addresses.py OUT < CASES`. CASES is a JSON list of
[kernel, problem, config, SMs]; OUT gets, pickled, one list of Touched for each.
"""

from __future__ import annotations

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple


class Touched(NamedTuple):
    """One execution of a memory operation: what, where in the source, by which program, and which elements."""

    op: str
    tensor: str
    source: tuple[str, int]
    program: int
    offsets: Any
    active: Any


def record(kernel, launch, root):
    """Launch once; every operation's element offsets from its tensor's start, and its mask."""
    import numpy as np
    import torch
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    touched, bases = [], {}
    tensors = {}
    for name, spec in kernel.family.tensors(launch.problem).items():
        stored = torch.zeros(spec.stored, dtype=getattr(torch, launch.problem.dtype))
        tensors[name] = stored.t() if spec.transposed else stored
    size = next(iter(tensors.values())).element_size()
    arguments = kernel.arguments(tensors, launch)
    names = ("masked_load", "masked_store", "atomic_rmw", "descriptor_load", "descriptor_store")
    plain = {f"create_{name}": getattr(builder, f"create_{name}") for name in names}
    described = []  # whether a descriptor's own operation is under way
    to_host = interpreter.GridExecutor._init_args_hst

    def init_args(self, args, kwargs):
        positional, named = to_host(self, args, kwargs)
        for argument, value in named.items():
            for name, tensor in tensors.items():
                given = arguments[argument]
                if getattr(given, "base", given) is tensor:
                    value = getattr(value, "base", value)
                    bases[name] = (value.data_ptr(), value.numel() * size)
        return positional, named

    def note(self, op, pointers, mask):
        addresses = np.asarray(pointers.data, dtype=np.int64).ravel()
        active = np.broadcast_to(mask.data, pointers.data.shape).ravel().astype(bool)
        inside = addresses[active] if active.any() else addresses[:1]
        (tensor,) = (n for n, (at, room) in bases.items() if ((at <= inside) & (inside < at + room)).all())
        frame = sys._getframe()
        while not Path(frame.f_code.co_filename).is_relative_to(root / "kernels"):
            frame = frame.f_back
        source = (str(Path(frame.f_code.co_filename).relative_to(root)), frame.f_lineno)
        (x, y, z), (grid_x, grid_y, _) = self.grid_idx, self.grid_dim
        offsets, rest = np.divmod(addresses - bases[tensor][0], size)
        assert not rest.any()
        op = "descriptor" if described else op
        touched.append(Touched(op, tensor, source, x + y * grid_x + z * grid_x * grid_y, offsets, active))

    def load(self, pointers, mask, *rest, **options):
        note(self, "load", pointers, mask)
        return plain["create_masked_load"](self, pointers, mask, *rest, **options)

    def store(self, pointers, value, mask, *rest):
        note(self, "store", pointers, mask)
        return plain["create_masked_store"](self, pointers, value, mask, *rest)

    def atomic(self, operation, pointers, value, mask, *rest):
        note(self, "atomic", pointers, mask)
        return plain["create_atomic_rmw"](self, operation, pointers, value, mask, *rest)

    def of_descriptor(name):
        def call(self, *arguments):
            described.append(True)
            try:
                return plain[name](self, *arguments)
            finally:
                described.pop()

        return call

    # The unmasked and the descriptor operations of the builder call the masked ones.
    builder.create_masked_load, builder.create_masked_store, builder.create_atomic_rmw = load, store, atomic
    for name in ("create_descriptor_load", "create_descriptor_store"):
        setattr(builder, name, of_descriptor(name))
    interpreter.GridExecutor._init_args_hst = init_args
    try:
        kernel.jitted[kernel.grid(launch)](**arguments)
    finally:
        interpreter.GridExecutor._init_args_hst = to_host
        for name, function in plain.items():
            setattr(builder, name, function)
    return touched


def main():
    from kernels import discover
    from kernels.experiment import from_json
    from kernels.gpus import GPUS
    from kernels.measuring.interpreter import patch_language_once
    from kernels.spec import Launch

    patch_language_once()
    root = Path(sys.modules["kernels"].__file__).parent.parent
    results = []
    for kernel, problem, config, sms in json.load(sys.stdin):
        experiment = from_json({"kernel": kernel, "problem": problem, "config": config}, discover())
        gpu = replace(GPUS["H200"], sms=sms)
        results.append(record(discover()[kernel], Launch(experiment.problem, experiment.config, gpu), root))
    plain = [[tuple(one) for one in touched] for touched in results]
    Path(sys.argv[1]).write_bytes(pickle.dumps(plain))


if __name__ == "__main__":
    main()
