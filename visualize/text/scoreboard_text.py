"""What the Scoreboard tab says: how many counts agree, each point's words, the misses, and what is left out."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from kernels.spec import shape_text
from visualize.predict.scores import ALLOWED_ERROR, DRAM, EXACT_COUNTS, Score, Scoreboard
from visualize.text.recorded_text import config, dtype
from visualize.views.numbers import bytes_of, counted, enumerated, percent, significant
from visualize.views.prose import Link, Mark, Sentence, Sourced, headline, hint, say
from visualize.views.tables import frame, table

_NOUNS = {"sectors": "sector counts", "requests": "request counts", DRAM: "DRAM reads"}


def in_short(board: Scoreboard) -> str:
    """How many sectors and requests agree, and of how many launches."""
    part = board.part(EXACT_COUNTS)
    of = f"{counted(part.launches, 'launch')}, {enumerated(part.gpus)}"
    return f"{part.exact:,} of {len(part.scores):,} counts agree exactly ({of})"


def claim(shown: Scoreboard, count: str, both: Scoreboard) -> Markup:
    """How much of what is shown agrees.

    Args:
        shown: of one count.
        both: sectors and requests of the same launches.
    """
    if not shown.scores:
        return headline("", "", f"No {_NOUNS[count]} of this kernel were counted on this GPU.")
    return _of_dram(shown) if count == DRAM else _of_exact(shown, count, both)


def _of_exact(shown: Scoreboard, count: str, both: Scoreboard) -> Markup:
    where = say("In {} on {}", counted(shown.launches, "launch"), enumerated(shown.gpus))
    missed, marks = len(shown.misses), (Mark("predicted"), Mark("counted"))
    if missed:
        differ = f"{missed:,} {{}} {'count differs' if missed == 1 else 'counts differ'} from what Nsight Compute {{}}."
        sentence = say("{}, {}", where, say(differ, *marks))
    else:
        equal = say("each {} count equals what Nsight Compute {}.", *marks)
        sentence = say("{}, {} {}", where, equal, _loops(shown))
    together = say("Sectors and requests together: {:,} of {:,} agree exactly.", both.exact, len(both.scores))
    how = "Predictions come from the kernel's index arithmetic and the layouts that the compiler chose."
    number = f"{shown.exact:,} of {len(shown.scores):,}"
    return headline(number, f"{_NOUNS[count]} agree exactly", sentence, together, how)


def _of_dram(shown: Scoreboard) -> Markup:
    orders, flagged = len(shown.scores), [one for one in shown.scores if one.is_flagged]
    sentence = say(
        "{:,} orders of {} on {}: {} are {} within {} of what was {}. DRAM reads depend on timing.",
        orders,
        counted(shown.launches, "launch"),
        enumerated(shown.gpus),
        percent(1 - len(shown.misses) / len(shown.scores)),
        Mark("predicted"),
        percent(ALLOWED_ERROR),
        Mark("counted"),
    )
    unflagged = [one for one in shown.misses if not one.is_flagged]
    doubt = say(
        "The model flags {:,} of them, from the launch alone. Of the others, {} further off.",
        len(flagged),
        f"{len(unflagged):,} {'is' if len(unflagged) == 1 else 'are'}",
    )
    return headline(percent(shown.median_error), "median error of DRAM reads", sentence, doubt)


def point(one: Score) -> str:
    """What a point says: the launch, and both numbers. Lines as Plotly breaks them."""
    launch = one.experiment
    lines = (
        f"<b>{one.operation}</b> of {launch.kernel}, {launch.gpu}",
        f"{shape_text(launch.problem)}, {dtype(launch.problem)}",
        config(launch.config),
        f"predicted <b>{_number(one, one.predicted)}</b>, counted <b>{_number(one, one.counted)}</b>{_off(one)}",
    )
    return "<br>".join(lines)


def about(shown: Scoreboard, count: str) -> str:
    """What a saved picture says of itself."""
    of = f"{len(shown.scores):,} {_NOUNS[count]} of {counted(shown.launches, 'launch')}"
    return f"Tilescope's scoreboard · {of} · {enumerated(shown.gpus)} · predicted and recorded"


def _number(one: Score, value: int) -> str:
    return bytes_of(value) if one.count == DRAM else f"{value:,}"


def _off(one: Score) -> str:
    return "" if one.is_exact else f", {_error(one)}"


def _error(one: Score) -> str:
    return f"{'+' if one.error > 0 else '−'}{significant(abs(100 * one.error), 2)}\u00a0%"


def below(shown: Scoreboard, count: str, listed: str, links: dict[Score, str]) -> Markup:
    """What stands below the picture: the misses by themselves, what is left out, and where all of it is listed.

    Args:
        listed: the address query of the list.
        links: that of each miss' launch.
    """
    lead = say("Click a point to open its launch. {} lists them all.", Link("Recorded", listed))
    return hint(lead, *_left_out(shown)) + _misses(shown, count, links)


def _left_out(shown: Scoreboard) -> tuple[Sentence | str, ...]:
    missing = len(shown.unpredicted)
    return (
        _loops(shown),
        say("Left out: {:,} recorded launches that no prediction is shipped for.", missing) if missing else "",
    )


def _loops(shown: Scoreboard) -> Sentence | str:
    """The atomics that are not compared."""
    launches = len({one.experiment for one in shown.lower_bounds})
    if not launches:
        return ""
    return say("Not compared: retrying atomics of {}.", counted(launches, "launch"))


def _misses(shown: Scoreboard, count: str, links: dict[Score, str]) -> Markup:
    misses, noun = shown.misses, _NOUNS[count]
    off = f"further off than {percent(ALLOWED_ERROR)}" if count == DRAM else "not equal"
    if not misses:
        kept = f"none is {off}" if count == DRAM else "each equals its prediction"
        return hint(say("No misses among {:,} {}: {}.", len(shown.scores), noun, kept))
    title = f"{len(misses):,} of {len(shown.scores):,} {noun} {'is' if len(misses) == 1 else 'are'} {off}"
    return Markup("<details open><summary>{}</summary>{}</details>").format(title, _table(misses, count, links))


def _table(misses: tuple[Score, ...], count: str, links: dict[Score, str]) -> Markup:
    header: tuple[Any, ...] = (
        *("Kernel", "Operation", Sourced("Predicted", "predicted"), Sourced("Counted", "recorded"), "Error"),
        *("GPU", *(("Flag",) if count == DRAM else ()), "Shape", "Type", "Config"),
    )
    rows = [
        (
            Link(one.experiment.kernel, links[one]),
            one.operation,
            _number(one, one.predicted),
            _number(one, one.counted),
            _error(one),
            one.experiment.gpu,
            *(("flagged" if one.is_flagged else "none",) if count == DRAM else ()),
            shape_text(one.experiment.problem),
            dtype(one.experiment.problem),
            config(one.experiment.config),
        )
        for one in misses
    ]
    return table(frame(header, rows))
