"""Experiments, written as an address: "matmul.grouped M=64 num_warps=8" is a kernel and its fields."""

from dataclasses import replace

from tilescope.declare.experiment import from_json, nest


def fields(text):
    """Return the fields of an address by name; a mapping is returned unchanged. The kernel may be absent."""
    if not isinstance(text, str):
        return text
    return dict((word if "=" in word else f"kernel={word}").split("=", 1) for word in text.split())


def experiment_of(text="transpose.tiled", **others):
    """Return an experiment; `others` are fields that are computed."""
    flat = fields(text) | others
    made = from_json(nest(flat))
    assert flat.keys() <= {*made.to_address(), "gpu"}, "a field that the kernel lacks"
    return made


def fill_sms(schedule, programs_per_sm):
    """Return a schedule with this many programs on each SM."""
    return replace(schedule, resident_programs=schedule.sms * programs_per_sm)
