"""The one codec: frozen dataclasses to JSON and back, checked strictly against their annotations."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError


class UnreadableRecording(ValueError):
    """JSON that does not hold the expected value: where it stands, which field is wrong, and why."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    # Pydantic refuses a config for a dataclass, but passes a tuple's config on to its items.
    return TypeAdapter(tuple[kind], config=ConfigDict(strict=True, extra="forbid"))


def to_json(value: Any, *, omit_defaults: bool = False) -> Any:
    """Return a dataclass as plain JSON. NaN and infinity stay floats.

    Args:
        omit_defaults: leave out fields that have their default, as recordings do.
    """
    # NumPy numbers are the only values that pydantic does not know.
    (plain,) = _adapter(value.__class__).dump_python(
        (value,), mode="json", exclude_defaults=omit_defaults, fallback=lambda number: number.item(), warnings=False
    )
    return plain


def from_json(kind: Any, payload: Any, place: str) -> Any:
    """Return the value that `payload` holds. Omitted fields take their defaults.

    Args:
        kind: a dataclass, or a tuple or dict of them.
        payload: as `json.loads` returns it.
        place: where the payload stands, such as a file and a line, for the error.

    Raises:
        UnreadableRecording: for an unknown or missing field, or a value of another type: "1" is not a number.
    """
    try:
        (value,) = _adapter(kind).validate_json(json.dumps([payload]))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        reason = first.get("ctx", {}).get("error", first["msg"])
        raise UnreadableRecording(f"{place}: {field}: {str(reason).removesuffix('.')}.") from error
    return value
