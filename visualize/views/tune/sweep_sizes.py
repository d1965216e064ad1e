"""One search at several sizes of one dimension: a sweep for each, as times of different problems rank nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernels.knobs import ConfigError, knobs, quote
from kernels.results import Sweep
from kernels.space import Space, parse_varied
from visualize.views.address import query
from visualize.views.plot import NONE, drawn
from visualize.views.state import State
from visualize.views.tune import text as sweep_text
from visualize.views.tune.figures import baselines_figure
from visualize.views.tune.sweep_options import SweptKnobs, swept_space

# Sizes of one search: each takes as long as a sweep.
MOST_SIZES = 12

_FIELD = "sweep_over"


@dataclass(frozen=True)
class Sizes:
    """The spaces of one search.

    Attributes:
        dimension: that differs.
        spaces: by its size, ascending.
    """

    dimension: str
    spaces: dict[int, Space]

    @cached_property
    def names(self) -> dict[str, str]:
        """What each space is called, by its identity."""
        return {space.identity: f"{self.dimension} {size:,}" for size, space in self.spaces.items()}


def swept_sizes(state: State) -> Sizes | None:
    """The sizes that are set; None where the one of the problem alone is swept.

    Raises:
        ConfigError: for the field of the sizes or of what varies, with what is wrong in it.
    """
    text = state.view.of(SweptKnobs).sweep_over.strip()
    if not text:
        return None
    own = swept_space(state)
    problem = own.base.problem
    dimensions = [name for name, knob in knobs(type(problem)).items() if knob.choices is None]
    try:
        given = parse_varied(text.replace(", ", ",").split(), _FIELD)
        if len(given) > 1 or next(iter(given)) not in dimensions:
            takes = f"one of {', '.join(dimensions)} and its sizes, as in {dimensions[-1]}=512,1024"
            raise ConfigError("not_a_dimension", f"{_FIELD} is {quote(text)}; it takes {takes}.")
        ((name, values),) = given.items()
        knob = knobs(type(problem))[name]
        sizes = sorted({int(knob.validate(name, value)) for value in values})
        if len(sizes) > MOST_SIZES:
            raise ConfigError("too_many_sizes", f"{len(sizes)} sizes are given; at most {MOST_SIZES} are allowed.")
        spaces = {
            size: dataclasses.replace(
                own, base=dataclasses.replace(own.base, problem=dataclasses.replace(problem, **{name: size}))
            )
            for size in sizes
        }
    except ConfigError as error:
        raise ConfigError(error.kind, str(error), _FIELD) from None
    return Sizes(name, spaces)


def picture(sizes: Sizes, found: Sequence[tuple[int, Sweep | None]]) -> str:
    """The value of the plot; NONE where nothing was timed beside the library."""
    timed = timed_of(found)
    if not timed:
        return NONE
    of = [(size, one.final.baselines) for size, one in timed if one.final]
    first = timed[0][1]
    anew = f"library {' '.join(str(size) for size, _ in of)} {first.space.identity}"
    return drawn(baselines_figure(sizes.dimension, of, first.source), anew, about=sweep_text.sweep_caption(first))


def timed_of(found: Sequence[tuple[int, Sweep | None]]) -> list[tuple[int, Sweep]]:
    """The sizes whose best config was timed beside the library."""
    return [(size, one) for size, one in found if one is not None and one.final is not None and one.final.baselines]


def claim(sizes: Sizes, found: Sequence[tuple[int, Sweep | None]]) -> str:
    """What they say together."""
    return sweep_text.sizes_headline(sizes.dimension, len(sizes.spaces), timed_of(found))


def table(sizes: Sizes, found: Sequence[tuple[int, Sweep | None]], state: State) -> str:
    """The best config at each size, with a link that sets it."""

    def address(size: int) -> str:
        return query(state.moved_to(**{sizes.dimension: size, "sweep_picture": ""}))

    return sweep_text.sizes_table(sizes.dimension, found, address)


Finding = Callable[[Space], Sweep | None]


def each(sizes: Sizes, finding: Finding) -> list[tuple[int, Sweep | None]]:
    """What is known at each size."""
    return [(size, finding(space)) for size, space in sizes.spaces.items()]
