"""What is said of a launch below its roof."""

from __future__ import annotations

from visualize.predict.bounds import Bound, Point, Roof
from visualize.views.numbers import percent, significant
from visualize.views.prose import Sentence, Sourced, Strong, say

NO_WORK = "This kernel does no arithmetic, so it has no roofline: a copy of the same bytes is its bound."
NO_ROOF = "Nothing was measured of this GPU in this type, so there is no roof to draw."


def claim(roof: Roof, own: Point | None, bound: tuple[Point, Bound] | None) -> tuple[Sentence, ...]:
    """How near a launch is to its roof, which side of the ridge it is on, and what is predicted to be the limit."""
    at = own or (bound[0] if bound else None)
    if at is None:
        return ()
    limit = "arithmetic" if at.intensity >= roof.ridge else "DRAM"
    where = say(
        "At {} FLOP per byte {} is the roof of the {}; its ridge is at {}.",
        significant(at.intensity), limit, roof.gpu, significant(roof.ridge),
    )  # fmt: skip
    said = [where]
    if own:
        share = percent(own.tflops / roof.at(own.intensity))
        top = Sourced(f"{significant(roof.at(own.intensity))} TFLOP/s", roof.source)
        said.insert(0, say("This kernel reaches {} of its roof of {}.", Strong(share), top))
    if bound:
        point, slowest = bound
        of = Sourced(f"{significant(point.tflops)} TFLOP/s", "predicted")
        said.append(say("The slowest resource by itself is {}: {}; {}.", slowest.name, of, slowest.why))
    return tuple(said)
