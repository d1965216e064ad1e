"""Why there is no result: a value like any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

STAGES = ("config", "compile", "launch", "check", "time", "worker")


@dataclass(frozen=True)
class Failure:
    """Why there is no result: the stage it struck, a word for programs, a sentence for people.

    A missed deadline is kind "timeout" of the stage it struck. A wrong result is no Failure.
    """

    stage: str
    kind: str
    message: str
    field: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"failure": {"stage": self.stage, "kind": self.kind, "message": self.message}}
