"""The scripts in the page's list of kernels. A message about one of them becomes an update of the page's slots."""

import asyncio
import json
import re
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tilescope.advice.findings import Compiler
from tilescope.captures.reader import split_case
from tilescope.declare.discovery import examples
from tilescope.declare.knobs import ConfigError, knobs, quote, read_fields
from tilescope.reports.brief import to_json
from visualize.views import slots
from visualize.views.capture.script import GPU_MENU, Recapture, Script, launch_form
from visualize.views.capture.view import TABS, LaunchView, clip, draw
from visualize.views.panel import Api, Slots
from visualize.views.slots import DISABLED, WATCH
from visualize.views.state import query, read_tab
from visualize.web.controls import kernel_menu

# The start of a script's name.
PREFIX = "script."

# The tabs of a script that take the place of a kernel's.
_SAME_VIEW = {
    "dram-reads": "program-order",
    "sweep": "requests",
}


@dataclass(frozen=True)
class ScriptState:
    """A script, as one page shows it.

    Attributes:
        version: of the capture that the page shows.
    """

    id: str
    view: LaunchView
    version: str


class Scripts:
    """Scripts by the name that they have in place of a kernel's ID.

    Attributes:
        opened: the script that an empty address opens; "" for none.
    """

    def __init__(self, scripts: Mapping[str, Script], opened: str = "") -> None:
        self.scripts = scripts
        self.opened = opened

    def find(self, fields: dict[str, Any]) -> ScriptState | None:
        """Return the script that a message is about, with its view; None if it is about a kernel.

        Raises:
            ConfigError: a field is invalid.
        """
        link = fields.get("open", fields.get("follow"))
        given = fields.get("settings")
        if isinstance(link, str):
            given = dict(urllib.parse.parse_qsl(link.removeprefix("?")))
            if "open" in fields and not {"kernel", "tour"} & given.keys():
                given["kernel"] = self.opened
        if not isinstance(given, dict) or str(given.get("kernel")) not in self.scripts:
            return None
        name = str(given["kernel"])
        tab = read_tab(given, TABS[0])
        if tab not in (*TABS, *_SAME_VIEW):
            return None
        is_new = link is None and given.get("form_of") != name
        if is_new:
            given = {}
        values = {field: given[field] for field in knobs(LaunchView) if field in given}
        view = read_fields(LaunchView, {**values, "tab": _SAME_VIEW.get(tab, tab)}, "the page")
        script = self.scripts[name]
        if link is None and not is_new and WATCH not in fields:
            script.choose(given)
        view = clip(script.launches, view)
        return ScriptState(name, view, str(fields.get(WATCH, script.version)))

    def fill(self, state: ScriptState) -> Slots:
        """Fill the forms and the open view."""
        script = self.scripts[state.id]
        launches = script.launches
        chosen = script.chosen if script.is_live else None
        address: dict[str, object] = {"kernel": state.id, **asdict(state.view)}
        is_stale = script.is_stale or script.is_capturing
        problem = "The script is being captured again." if script.is_capturing else script.problem
        link = {
            "full": query(address),
            "short": query(address),
            "title": launches.content.script,
            "shows": "script stale" if is_stale else "script",
        }
        gpus = [GPU_MENU] if script.is_live else []
        menus = [kernel_menu(self.titles, launches.content.about.partition("\n\n")[0]), *gpus]
        values = {"kernel": state.id, "form_of": state.id, "gpu": launches.gpu}
        return {
            "settings": json.dumps({**address, "form_of": state.id}),
            "experiment": slots.form_value(menus, values),
            "script": launch_form(launches, state.view.launch, chosen),
            "tab": state.view.tab,
            "link": json.dumps(link),
            "problems": slots.problems_value({"": problem} if problem else {}),
            "compare": "",
            "run": DISABLED,
            WATCH: state.version if script.is_live else "",
            **draw(script, state.view, address),
        }

    async def watch(self, state: ScriptState) -> AsyncIterator[Slots]:
        """Redraw if a script has a newer capture than the page shows.

        The page then asks again. A stream would hold one of the six connections that a browser opens to a host.
        """
        script = self.scripts[state.id]
        script.follow()
        version = str(script.version)
        if state.version == version:
            yield {WATCH: version}
        else:
            view = clip(script.launches, state.view)
            yield await asyncio.to_thread(self.fill, replace(state, version=version, view=view))

    @property
    def titles(self) -> dict[str, str]:
        return {name: f"script: {name.removeprefix(PREFIX)}" for name in self.scripts}

    def requests(self, _: Api, script: str = "") -> dict[str, Any]:
        """Counts the memory requests of every Triton launch in a script, and explains them, as `show --json` does.

        `faults`: wrong results. `brief`: the findings. `launches`: each source line's requests, sectors, ideal sectors
        and findings (`why`), in `ops`. `script`: one on the page, such as softmax. Default: the one that `show` opened.
        """
        name = f"{PREFIX}{script}" if script else self.opened or next(iter(self.scripts))
        if name in self.scripts:
            self.scripts[name].follow()
            return to_json(self.scripts[name].launches.report())
        names = ", ".join(each.removeprefix(PREFIX) for each in self.scripts)
        problem = f"script must be one of {names} (got {quote(script)}). `tilescope show SCRIPT.py --mcp` counts yours."
        raise ConfigError("not_captured", problem, "script")


def script_name(source: str) -> str:
    """Return the name of a script in place of a kernel's ID.

    >>> script_name("kernels/examples/softmax.py:case"), script_name("package.module")
    ('script.softmax', 'script.package.module')
    """
    name = Path(split_case(source)[0]).name
    return PREFIX + re.sub(r"\.(py|ipynb|tilescope)$", "", name)


def shipped_scripts(
    recapture: Recapture | None = None, compiler: Compiler | None = None
) -> dict[str, Script]:
    """Return the example scripts, with the captures that ship with them."""
    return {
        script_name(source): Script(
            Path(source).with_suffix(".tilescope"), source, recapture, compiler
        )
        for source in examples()
    }
