"""Write files of scores."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tilescope.results import codec
from tilescope.results.scores import Score, parse_scores


def replace_scores(path: Path, scores: Iterable[Score]) -> None:
    """Replace the scores of the same models in a file."""
    new = list(scores)
    models = {score.model for score in new}
    old = parse_scores(path.read_text(encoding="utf-8")) if path.exists() else ()
    kept = [score for score in old if score.model not in models]
    path.write_text("".join(f"{format_score(each)}\n" for each in kept + new), encoding="utf-8")
    print(f"{path}: {len(new)} new scores, {path.stat().st_size:,} bytes")


def format_score(score: Score) -> str:
    """Return a score as a line of the file, without the newline. Fields with default values are omitted."""
    return json.dumps(
        codec.to_json(score, omit_defaults=True), ensure_ascii=False, separators=(",", ":")
    )
