"""What the app logs, on its error stream: a line for each record, as text or, with TILESCOPE_LOG=json, as JSON.

A job that has ended is one record, with its id, stages and outcome in `fields`.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import sys

# Variable that chooses the form.
FORM = "TILESCOPE_LOG"


class JsonLines(logging.Formatter):
    """A JSON object each: time, level, logger, message, the record's `fields`, and a traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_here() -> None:
    """Begin to log. As text, only what somebody must look at."""
    is_json = os.environ.get(FORM, "").strip().lower() == "json"
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(JsonLines() if is_json else logging.Formatter("%(levelname)s: %(name)s: %(message)s"))
    logger = logging.getLogger("tilescope")
    logger.handlers[:] = [stream]
    logger.propagate = False
    logger.setLevel(logging.INFO if is_json else logging.WARNING)
