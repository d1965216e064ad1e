"""Scripts in the page's list of kernels: their launches and controls, and their part in the page's messages.

A message about a script becomes an update of the page's slots.
"""

import asyncio
import json
import re
import shlex
import threading
import urllib.parse
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tilescope.advice.findings import Compiler
from tilescope.caching import once
from tilescope.captures.reader import Capture
from tilescope.captures.server import split_case
from tilescope.declare.discovery import examples
from tilescope.declare.experiment import OPTIONS, Json
from tilescope.declare.gpus import ALL_GPUS, DEFAULT_GPU
from tilescope.declare.knobs import ConfigError, Knob, knobs, quote, read_fields
from tilescope.reports.launch import Launches, LaunchReport
from tilescope.reports.text import to_json
from visualize.views import slots
from visualize.views.launches import TABS, LaunchView, clip, draw
from visualize.views.panel import Api, Slots
from visualize.views.prose import Code, hint, say
from visualize.views.slots import DISABLED, WATCH, control
from visualize.views.state import query, read_tab, read_valid, refuse_tab
from visualize.web.controls import kernel_menu

# The start of a script's name.
PREFIX = "script."

# The tabs of a script that take the place of a kernel's.
_SAME_VIEW = {
    "dram-reads": "program-order",
    "sweep": "requests",
}

# (script with its case, further options of the recorder, whether a later change supersedes it) → the new capture.
# Raises an exception if there is none.
Recapture = Callable[[str, Sequence[str], Callable[[], bool]], Path]


class Script:
    """A script, or a capture without one.

    Attributes:
        source: the script, with its case, as on the command line.
        launches: of the latest capture.
        before: the launches of the capture before that, to compare with.
        problem: why the script could not be captured again; "" if it could.
        is_stale: whether the launches are of an earlier version of the script.
        version: incremented by each capture.
        is_capturing: whether a capture is in progress.
        chosen: values of its controls on the page that differ from the defaults.

    Args:
        path: the capture.
        recapture: captures the script again. None if that is impossible.
        compiler: see `findings.find`.
    """

    def __init__(
        self,
        path: Path,
        source: str,
        recapture: Recapture | None = None,
        compiler: Compiler | None = None,
    ) -> None:
        self.source = source
        self.before: Launches | None = None
        self.problem = ""
        self.is_stale = False
        self.is_capturing = False
        self.version = 0
        self.chosen: Json = {}
        self._recapture = recapture
        self._compiler = compiler
        self._open = once(lambda: Launches(Capture(path), compiler))
        self._latest: Launches | None = None
        self._modified = self._modification()
        self._changing = threading.Lock()
        self._capturing = threading.Lock()
        self._captures = 0

    @property
    def launches(self) -> Launches:
        return self._latest or self._open()

    @property
    def is_live(self) -> bool:
        """Whether it can be captured again."""
        return self._recapture is not None

    def launch_before(self, number: int) -> LaunchReport | None:
        """Return the report of a launch in the capture before the latest one."""
        if not self.before or self.is_stale:
            return None
        return next(iter(self.before.report().launches[number : number + 1]), None)

    def follow(self) -> None:
        """Start to capture the script again if its file has changed."""
        with self._changing:
            modified = self._modification()
            if modified and modified != self._modified:
                self._modified = modified
                self._start_capture()

    def choose(self, given: Json) -> None:
        """Start to capture the script again if the values of its controls differ from those of the latest capture."""
        with self._changing:
            chosen = changed_values(self.launches, given, self._open().gpu)
            if self.is_live and chosen != self.chosen:
                self.chosen = chosen
                self._start_capture()

    def _modification(self) -> list[tuple[int, int]]:
        """Return the modification time in ns and the size of the script, or of the files that hold a module's kernels.

        Editors that first truncate a file may write it within one tick of the file system's clock.
        """
        if not self.is_live:
            return []
        path = Path(split_case(self.source)[0])
        files = {path}
        if path.suffix not in (".py", ".ipynb"):
            files = {Path(kernel.file) for kernel in self.launches.content.kernels}
        statuses = [file.stat() for file in sorted(files) if file.is_file()]
        return [(status.st_mtime_ns, status.st_size) for status in statuses]

    def _start_capture(self) -> None:
        """Capture the script again in a thread. A capture in progress ends, and its result is dropped."""
        self._captures += 1
        self.is_capturing = True
        start = self._captures, capture_options(self.chosen)
        threading.Thread(target=self._capture_again, args=start, daemon=True).start()

    def _capture_again(self, number: int, options: Sequence[str]) -> None:
        """Replace the launches, unless the script fails before its first launch."""
        assert self._recapture
        latest = self.launches
        try:
            with self._capturing:
                path = self._recapture(self.source, options, lambda: number != self._captures)
                new = Launches(Capture(path), self._compiler)
            content = new.content
            problem = "" if content.launches else "".join(content.not_captured[:1])
            if stopped := content.stopped:
                place = f" ({Path(stopped.file).name}, line {stopped.line})"
                problem = f"{stopped.message.removesuffix('.')}{place if stopped.line else ''}."
            is_stale = bool(problem) and not content.launches
            new.report()  # so that no page waits for it
        except Exception as error:
            problem = str(error)
            is_stale = True
        with self._changing:
            if number != self._captures:
                return
            if is_stale:
                problem = (
                    f"{problem.removesuffix('.')}. The report below is from before this change."
                )
            else:
                self.before = latest
                self._latest = new
            self.problem = problem
            self.is_stale = is_stale
            self.is_capturing = False
            self.version += 1


# Field names in the page's settings: the prefix of a case's parameters, the sweep over them, the prefix of an autotuned
# kernel's config number, and the GPU.
_CASE = "case_"
_SWEEP = "sweep"
_CONFIG = "config_"
GPU = "gpu"

GPU_MENU = control(
    GPU,
    Knob("", "Script", "The GPU to compile for.", choices=tuple(ALL_GPUS), label="GPU"),
)


def launch_form(launches: Launches, number: int, chosen: Json | None) -> str:
    """Return the value of the form of the launch and, if the script can be captured again, of its parameters.

    Args:
        chosen: values of the script's controls that differ from the defaults; None if it can't be captured again.
    """
    distinct = launches.report().distinct
    titles = [f"{numbers[0]}: {launch.kernel}" for numbers, launch in distinct]
    choices = {"choices": [numbers[0] for numbers, _ in distinct], "labels": titles}
    launch = control("launch", Knob(0, "Launch", "Number of the launch.", label="kernel"))
    fields = [{**launch, "kind": "menu", **choices}]
    values: Json = {"launch": number}
    if chosen is not None:
        for field, default in script_controls(launches):
            fields.append(field)
            values[field["name"]] = chosen.get(field["name"], default)
    return slots.form_value(fields, values)


def changed_values(launches: Launches, given: Json, gpu: str) -> Json:
    """Return the values of the script's controls that differ from their defaults.

    Args:
        gpu: the GPU that it was first compiled for.

    Raises:
        ConfigError: the table has no such GPU.
    """
    defaults = {field["name"]: default for field, default in script_controls(launches)}
    changed = {
        name: given[name]
        for name, value in {GPU: gpu, **defaults}.items()
        if given.get(name, "") not in ("", value)
    }
    if changed.get(GPU, DEFAULT_GPU) not in list(ALL_GPUS):
        sentence = f"gpu must be one of {', '.join(ALL_GPUS)} (got {quote(changed[GPU])})."
        raise ConfigError("unknown_gpu", sentence, GPU)
    return changed


def capture_options(chosen: Json) -> list[str]:
    """Return the options of the recorder for the given control values."""
    options = []
    for name, value in chosen.items():
        if name == GPU:
            options += ["--gpu-json", json.dumps(asdict(ALL_GPUS[value]))]
        elif name == _SWEEP:
            options += [f"--set={setting}" for setting in str(value).split()]
        elif name.startswith(_CASE):
            options += [f"--set={name.removeprefix(_CASE)}={value}"]
        else:
            options += [f"--config={name.removeprefix(_CONFIG)}={value}"]
    return options


def script_controls(launches: Launches) -> Iterator[tuple[Json, Any]]:
    """Yield each control of the script with its default."""
    content = launches.content
    if parameters := _case_parameters(launches)[1]:
        yield from ((_parameter(name, default), default) for name, default in parameters.items())
        values = (
            "Values of one or more parameters, such as n=64,128. Every combination is launched."
        )
        yield control(_SWEEP, Knob("", "Case", values, longest=300)), ""
    tuned = {
        launches.kernel(number).name: launch.tuned.of
        for number, launch in enumerate(content.launches)
        if launch.tuned
    }
    for name, number in tuned.items():
        which = "Number of the config to launch. 0 launches the first that compiles and fits."
        config = Knob(0, "Autotuner config", which, high=number, label=name)
        yield control(_CONFIG + name, config), 0


def _case_parameters(launches: Launches) -> tuple[str, Mapping[str, Any]]:
    """Return a script's only case and the defaults of its parameters; none for several cases."""
    case, *others = {launch.case for launch in launches.content.launches} or {None}
    return ("", {}) if others or not case else (case, launches.content.cases[case])


def tune_command(source: str, launches: Launches, gpu: str) -> str:
    """Return the command that tunes a script's case for several problems; "" if no config would vary.

    Blocks and Triton's options vary, and other numbers are problem parameters. The user completes them.

    Args:
        gpu: the GPU to tune for; "" for this machine's.
    """
    case, parameters = _case_parameters(launches)
    tuned = any(launch.tuned for launch in launches.content.launches)
    flags: dict[str, list[str]] = {"--over": [], "--set": []}
    for name, value in parameters.items():
        if type(value) is int and value > 0:
            is_config = name in OPTIONS or name.startswith("BLOCK")
            flags["--set" if is_config else "--over"].append(f"{name}={value},{2 * value}")
    path, _ = split_case(source)
    if not path.endswith(".py") or not (tuned or flags["--set"]):
        return ""
    words = [f"{path}:{case}"]
    for flag in ("--over",) if tuned else flags:
        words += (word for values in flags[flag] for word in (flag, values))
    return shlex.join(["tilescope", "tune", *words, *(["--gpu", gpu] if gpu else [])])


def _parameter(name: str, default: Any) -> Json:
    """Return the control of a case's parameter: a menu, a text field, or a slider with a number field."""
    allowed: Json = {"longest": 100}
    if isinstance(default, bool):
        allowed = {"choices": (False, True)}
    elif isinstance(default, int):
        allowed = {"high": max(1 << 16, 4 * default), "stops": "powers"}
    return control(
        _CASE + name, Knob(default, "Case", f"Parameter {name} of the case.", label=name, **allowed)
    )


@dataclass(frozen=True)
class ScriptState:
    """A script, as one page shows it.

    Attributes:
        version: of the capture that the page shows.
        problems: a sentence about each bad field of its link.
    """

    id: str
    view: LaunchView
    version: str
    problems: Mapping[str, str]


def _read_view(given: Json) -> LaunchView:
    tab = read_tab(given, TABS[0])
    if tab not in (*TABS, *_SAME_VIEW):
        raise refuse_tab(given["tab"], (name.replace("-", " ").capitalize() for name in TABS))
    values = {field: given[field] for field in knobs(LaunchView) if field in given}
    return read_fields(LaunchView, {**values, "tab": _SAME_VIEW.get(tab, tab)}, "the page")


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
        if link is None and read_tab(given, TABS[0]) not in (*TABS, *_SAME_VIEW):
            return None
        is_new = link is None and given.get("form_of") != name
        if is_new:
            given = {"tab": given.get("tab", TABS[0])}
        view, problems = (_read_view(given), {}) if link is None else read_valid(_read_view, given)
        script = self.scripts[name]
        if link is None and not is_new and WATCH not in fields:
            script.choose(given)
        view = clip(script.launches, view)
        return ScriptState(name, view, str(fields.get(WATCH, script.version)), problems)

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
        drawn = draw(launches, state.view, address, script.launch_before(state.view.launch))
        gpu = script.chosen.get(GPU, "")
        if "result" in drawn and (command := tune_command(script.source, launches, gpu)):
            sentence = "To find the fastest config for several problems, run {} in a terminal."
            drawn["result"] += hint(say(sentence, Code(command)))
        menus = [kernel_menu(self.titles, launches.content.about.partition("\n\n")[0]), *gpus]
        values = {"kernel": state.id, "form_of": state.id, "gpu": launches.gpu}
        return {
            "settings": json.dumps({**address, "form_of": state.id}),
            "experiment": slots.form_value(menus, values),
            "script": launch_form(launches, state.view.launch, chosen),
            "tab": state.view.tab,
            "link": json.dumps(link),
            "problems": slots.problems_value(
                {**({"": problem} if problem else {}), **state.problems}
            ),
            "compare": "",
            "run": DISABLED,
            WATCH: state.version if script.is_live else "",
            **drawn,
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
