"""Sweeps and their rows, read back from JSON as strictly as any recording."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from kernels import discover
from kernels.experiment import Experiment, from_json
from kernels.knobs import ConfigError
from kernels.records.record_form import UnreadableRecording
from kernels.results import Sweep, SweepRow
from kernels.results.sweep_result import STATUSES
from kernels.space import space_from_json

_STRICT = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    # Pydantic takes no settings for a dataclass itself; those of a tuple hold for what is in it.
    return TypeAdapter(tuple[kind], config=_STRICT)


def row_from_json(fields: Mapping[str, Any], place: str = "row") -> SweepRow:
    """The row of `SweepRow.to_json`, also of a config that its family refuses.

    Args:
        place: where it stands, for the error.

    Raises:
        UnreadableRecording: with the place and what is wrong.
    """
    row = _checked(_read(SweepRow, fields, place), place)
    return dataclasses.replace(row, experiment=_experiment(fields["experiment"], place))


def rows_from_json(
    fields: Sequence[Mapping[str, Any]], experiments: Sequence[Experiment], place: str
) -> list[SweepRow]:
    """Rows that were written without their experiments.

    Args:
        experiments: of each.

    Raises:
        UnreadableRecording: with the place and what is wrong.
    """
    rows: tuple[SweepRow, ...] = _read(tuple[SweepRow, ...], [{**one, "experiment": _NOTHING} for one in fields], place)
    for row in rows:
        _checked(row, place)
    return [dataclasses.replace(row, experiment=one) for row, one in zip(rows, experiments, strict=True)]


def _checked(row: SweepRow, place: str) -> SweepRow:
    if row.status not in STATUSES:
        raise UnreadableRecording(f"{place}: status is {row.status!r}; allowed are {', '.join(STATUSES)}.")
    return row


def sweep_from_json(fields: Mapping[str, Any], place: str = "sweep") -> Sweep:
    """The sweep of `Sweep.to_json`.

    Raises:
        UnreadableRecording: with the place and what is wrong.
    """
    try:
        space = space_from_json(fields["space"], discover())
        rows = tuple(row_from_json(row, f"{place}, row {number}") for number, row in enumerate(fields["rows"], 1))
    except (ConfigError, KeyError) as error:
        raise UnreadableRecording(f"{place}: {error}") from error
    empty = {**fields, "rows": [], "space": {"base": _NOTHING, "varied": []}}
    empty.pop("identity", None)
    sweep: Sweep = _read(Sweep, empty, place)
    if sweep.final is not None:
        best = _experiment(fields["final"]["best"], place)
        finalists = tuple(
            dataclasses.replace(one, experiment=_experiment(plain["experiment"], place))
            for one, plain in zip(sweep.final.finalists, fields["final"]["finalists"], strict=True)
        )
        sweep = dataclasses.replace(sweep, final=dataclasses.replace(sweep.final, finalists=finalists, best=best))
    return dataclasses.replace(sweep, space=space, rows=rows)


# Stands for the experiment of a space that is read by itself.
_NOTHING = {"kernel": "", "problem": None, "config": None}


def _read(kind: Any, fields: Any, place: str) -> Any:
    try:
        (found,) = _adapter(kind).validate_json(json.dumps([fields]))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        raise UnreadableRecording(f"{place}: {field}: {first['msg']}.") from error
    except TypeError as error:
        raise UnreadableRecording(f"{place}: {error}.") from error
    return found


def _experiment(payload: object, place: str) -> Any:
    try:
        return from_json(payload, discover(), together=False)
    except ConfigError as error:
        raise UnreadableRecording(f"{place}: experiment: {error}") from error
