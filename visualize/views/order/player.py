"""The player: goes through the steps of a launch, in all orders at once, without asking the server.

The figures carry what it draws from (`figures.schedule`). Where it stands is a knob of the view, so that it is part of
the page's address; it is written there when playing or scrubbing ends.
"""

from __future__ import annotations

from markupsafe import Markup

from visualize.views import theme
from visualize.views.slots import slot

# How fast: (steps per second; 0 for all of them in eight seconds, what it is called).
SPEEDS = ((0, "play in 8 s"), (1, "1 step per second"), (4, "4 steps per second"), (20, "20 steps per second"))

# What the colours of a step mean, in a word and in a sentence.
_LEGEND = (
    (theme.NEW, "new", "Used in this step, and loaded for the first time"),
    (theme.REUSED, "reused", "Used in this step, and loaded before"),
    (theme.BEFORE, "earlier", "Used in earlier steps alone"),
    (theme.TO_COME, "to come", "Not used yet"),
)

# How fast a launch is replayed in true time: seconds for all of it.
_REPLAYED_IN = (5, 10, 30)

_REPLAY_LEGEND = ((theme.NOW, "running", ""), (theme.DONE, "done", ""), (theme.TO_COME, "to come", ""))


def player() -> Markup:
    """The controls, and the counts beside each order. They find the picture by themselves.

    The document's events `tilescope:play`, and `tilescope:step` with detail {by: 1 or -1}, do what its buttons do.
    """
    speeds = "".join(f'<option value="{rate}">{name}</option>' for rate, name in SPEEDS)
    return slot(
        "player",
        "player",
        (
            '<div class="player" role="group" aria-label="Player of the launch"><div class="controls">'
            '<button type="button" class="play">▶ Play</button>'
            '<button type="button" class="back" aria-label="One step back">←</button>'
            '<button type="button" class="forward" aria-label="One step on">→</button>'
            '<input type="range" min="0" max="0" value="0" aria-label="Step" title="0: the whole launch">'
            "<output>whole launch</output>"
            f'<select aria-label="Speed" title="How fast Play goes">{speeds}</select>'
            f'<span class="legend steps">{_colors(_LEGEND)}</span>'
            '<span class="legend whole"><span class="ramp"><i></i>first to last</span>'
            '<span class="repeated">colours repeat every eight</span></span>'
            '<span class="legend first" hidden><span><i></i><span class="said"></span></span></span></div>'
            '<div class="counts"></div><template><p class="count"><b></b><span><span class="name"></span>'
            '<span class="what"></span></span></p></template></div>'
        ),
    )


def replay() -> Markup:
    """The controls of a replay in true time. They find the live plots by themselves."""
    paces = "".join(f'<option value="{seconds}">launch in {seconds} s</option>' for seconds in _REPLAYED_IN)
    return slot(
        "clock",
        "replay",
        (
            '<div class="player clock" hidden role="group" aria-label="Replay of the launch in true time">'
            '<button type="button" class="play">▶ Replay</button>'
            '<input type="range" min="0" max="0" value="0" aria-label="Time from the first start">'
            f'<output></output><select aria-label="Pace of the replay">{paces}</select>'
            f'<span class="legend">{_colors(_REPLAY_LEGEND)}</span></div>'
        ),
    )


def _colors(legend: tuple[tuple[str, str, str], ...]) -> str:
    """Colours with their names, and what they mean as hover text."""
    titles = [f' title="{meaning}"' if meaning else "" for _, _, meaning in legend]
    return "".join(
        f'<span{title}><i style="background:{color}"></i>{name}</span>'
        for (color, name, _), title in zip(legend, titles, strict=True)
    )
