"""Experiments, written as "matmul.grouped M=64 num_warps=8": a kernel and its fields, in the names of the page's address."""

from kernels.experiment import from_json, nest


def fields(text):
    """Return the fields of an address by name; a mapping is returned unchanged. The kernel may be absent."""
    if not isinstance(text, str):
        return text
    named = dict(word.split("=", 1) for word in text.split() if "=" in word)
    return named | {"kernel": word for word in text.split() if "=" not in word}


def experiment(text, **others):
    """Return an experiment; `others` are fields that are computed."""
    flat = fields(text) | others
    made = from_json(nest(flat))
    assert flat.keys() <= {*made.to_address(), "gpu"}, "a field that the kernel lacks"
    return made
