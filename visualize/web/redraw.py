"""Redraw the page: a message about its settings becomes a State, a snapshot, and new values of the page's slots.

Quick predictions are drawn immediately. Results of the compiler, prediction processes and running sweeps follow in a
stream.
"""

import asyncio
import itertools
import json
import urllib.parse
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from tilescope.compiling.inspection import list_trials
from tilescope.declare.discovery import opening
from tilescope.declare.experiment import Experiment, Json, find_kernel
from tilescope.declare.knobs import ConfigError, quote
from tilescope.declare.spec import shape_text
from tilescope.inside.inspect import Inspection
from tilescope.measure.session import Session
from tilescope.results import Compiled, Failure
from visualize.tours import expand_stop, tours
from visualize.views import compare
from visualize.views.panel import (
    NEAR_S,
    Panel,
    PredictionProcess,
    Slots,
    current_client,
    merge,
    run_in_slot,
)
from visualize.views.prose import render_predicting
from visualize.views.result.view import draw_run, end_run
from visualize.views.slots import ENABLED, OPEN, WATCH, problems_value
from visualize.views.state import Snapshot, State, opening_config, query, take_snapshot
from visualize.views.tabs import TABS, change_kernel, read_link, read_state, short_address
from visualize.web.controls import apply_preset, experiment_form
from visualize.web.scripts import Scripts

# Seconds between two progress messages of a compile.
_PROGRESS_S = 0.5


class Redraw:
    """Draws all pages. It keeps no page's state.

    Attributes:
        live_s: seconds between two live updates.
    """

    live_s = 0.7

    def __init__(
        self,
        session: Session,
        predictions: PredictionProcess,
        scripts: Scripts | None = None,
    ) -> None:
        self.session = session
        self.predictions = predictions
        self.scripts = scripts or Scripts({})
        self.panels = create_panels()
        self.all_panels = [panel for panels in self.panels.values() for panel in panels]

    def change(self, message: Json) -> Slots:
        """Return the slots that a change of settings, a change of view or a link fills immediately.

        Args:
            message: a link to `open` or to `follow`, or `settings`, the values of all controls. `shown` is the address
                of what the page shows.
        """
        slots = Slots()
        problems = dict[str, str]()
        try:
            if script := self.scripts.find(message):
                slots |= self.scripts.fill(script)
                if shown_fields(message).get("kernel") != script.id:
                    slots["operations-fold"] = OPEN
            else:
                self._show_experiment(message, slots, problems)
        except ConfigError as error:
            problems[error.field] = str(error)
        return {"problems": problems_value(problems), **slots}

    def _show_experiment(self, message: Json, slots: Slots, problems: dict[str, str]) -> None:
        """Fill the slots that a message about an experiment changes.

        Raises:
            ConfigError: for the first invalid value. `slots` then lacks the picture.
        """
        before = self._shown(message)
        if "open" in message or "follow" in message:
            state, invalid = self._open(message)
            problems |= invalid
            keeps_forms = False
        else:
            state = self.read(message, before)
            settings = message["settings"]
            keeps_forms = (
                settings.get("form_of") == state.kernel.id and settings.get("preset") is None
            )
        if not keeps_forms:
            slots |= self.fill(state)
        elif before and before.gpu != state.gpu:
            slots |= self._settings(state)
        if keeps_forms and state.pinned and before and before.experiment != state.experiment:
            # Next to the pinned run, an older run would look current.
            snapshot, pinned = self.take_snapshots(state)
            slots |= compare.pair_run(draw_run(snapshot), pinned)
        # A view that can't be drawn now may be drawn once the kernel is compiled.
        slots |= {"link": self._link(state), WATCH: ENABLED}
        drawing, has_more = self.draw(state)
        slots |= {**drawing, WATCH: ENABLED if has_more else ""}
        problems |= explain_at_knobs(self.session.find_compiled(state.experiment))

    def initial_slots(self) -> Slots:
        """Return the slots of a page without URL parameters, which a browser draws before it sends a message."""
        state = read_state(opening(), self.session.gpu)
        # Without results: reading all recordings would delay the start.
        return self._settings(state) | draw_view(self.panels[state.view.tab], Snapshot(state), None)

    def _shown(self, message: Json) -> State | None:
        """Return the state that the page showed before; None if it showed no experiment."""
        fields = shown_fields(message)
        try:
            return read_state(fields, self.session.gpu) if fields else None
        except ConfigError:
            return None

    def read(self, message: Json, before: State | None = None) -> State:
        """Return the state that a message describes.

        A new kernel or a preset replaces the previous kernel's values. If the GPU changes while the config is still the
        one that the kernel opened with, the kernel takes the new GPU's opening config.

        Args:
            before: the page's state before this message.

        Raises:
            ConfigError: for the first invalid value.
        """
        flat = message.get("settings")
        if not isinstance(flat, dict):
            raise ConfigError("not_settings", "The page sent no settings. Reload it.")
        names = [str(flat.get(name)) for name in ("kernel", "form_of")]
        if {*names} & self.scripts.scripts.keys():
            # A script's other settings are not a kernel's. The Library shows no script.
            is_library = names[0] in self.scripts.scripts
            opened = opening() if is_library else {"kernel": names[0]}
            return read_state({**opened, "tab": flat.get("tab")}, self.session.gpu)
        kernel = find_kernel(flat.get("kernel"))
        if flat.get("preset") is not None:
            flat = {
                "tab": flat.get("tab"),
                **apply_preset(flat, kernel, flat["preset"], self.session.gpu),
            }
        elif kernel.id != flat.get("form_of"):
            flat = {"tab": flat.get("tab"), **change_kernel(flat, kernel.id)}
        state = read_state(flat, self.session.gpu)
        if before and before.gpu != state.gpu:
            opened = opening_config(kernel, state.experiment.problem, before.gpu)
            if state.experiment.config == opened:
                flat = {name: value for name, value in flat.items() if name not in vars(opened)}
                return read_state(flat, self.session.gpu)
        return state

    def _open(self, message: Json) -> tuple[State, dict[str, str]]:
        """Read a link. An empty link opens the initial state, and invalid fields take their defaults."""
        self.predictions.warm_up()
        link = message.get("open", message.get("follow"))
        if not isinstance(link, str):
            raise ConfigError("not_a_link", "The page sent no link.", "")
        flat: Json = dict(urllib.parse.parse_qsl(link.removeprefix("?")))
        # Talk mode and the embed view do not describe an experiment.
        flat = {
            name: flat[name]
            for name in flat
            if not name.startswith("__") and name not in ("talk", "embed")
        }
        described = flat or (opening() if "open" in message else {})
        state, problems = read_link(expand_stop(described), self.session.gpu)
        if (tour := flat.get("tour", "")) not in ("", *tours()):
            problems["tour"] = f"There is no tour {quote(tour)}. The Tours menu lists all tours."
        return state, problems

    def _settings(self, state: State) -> Slots:
        return {
            "settings": json.dumps(state.to_settings(), ensure_ascii=False),
            "experiment": experiment_form(state, self.session.gpu, self.scripts.titles),
            "tab": state.view.tab,
            "run": ENABLED,
        }

    def fill(self, state: State) -> Slots:
        """Fill all forms. Show this state's run if it is known."""
        snapshot, pinned = self.take_snapshots(state)
        slots = self._settings(state) | merge(panel.fill(snapshot) for panel in self.all_panels)
        return slots | compare.pair_run(draw_run(snapshot), pinned)

    def end_run(self, state: State, outcome: Any) -> Slots:
        """Show a finished run. It names its experiment, so it appears even after a change of settings."""
        snapshot, pinned = self.take_snapshots(state)
        return compare.pair_run(end_run(outcome, snapshot), pinned)

    def _link(self, state: State) -> str:
        # Browsers detect other experiments' results by the full address. Talk mode shows the title.
        full = query(state.to_address())
        short = query(short_address(state))
        pinned = state.pinned_state(self.session.gpu)
        title = _title(state)
        if pinned and _title(pinned) != title:
            title = f"Now: {title}. Pinned: {_title(pinned)}"
        return json.dumps({"full": full, "short": short, "title": title})

    def draw(self, state: State) -> tuple[Slots, bool]:
        """Fill the open view, except slow predictions. Also return whether `stream` can add to it.

        Raises:
            ConfigError: if it cannot be drawn.
        """
        panels = self.panels[state.view.tab]
        snapshots = self.take_snapshots(state)
        # The stream redraws results that arrive during this drawing.
        has_live_updates = any(panel.has_live_updates(snapshots[0]) for panel in panels)
        estimate_s = draw_seconds(panels, *snapshots)
        is_slow = estimate_s > NEAR_S
        slots: Slots = {f"{state.view.tab}-headline": render_predicting(estimate_s)}
        if not is_slow:
            slots = draw_view(panels, *snapshots)
        is_missing = any(_find_missing(panels, snapshots)) or _has_trials(panels, snapshots[0])
        return slots, is_slow or has_live_updates or is_missing

    def take_snapshots(
        self,
        state: State,
        compiled: Compiled | Failure | None = None,
        inspections: Mapping[Experiment, Inspection | Failure] = MappingProxyType({}),
    ) -> tuple[Snapshot, Snapshot | None]:
        """Return the snapshots of a state and of its pinned experiment.

        Args:
            compiled, inspections: see `take_snapshot`.
        """
        pinned = state.pinned_state(self.session.gpu)
        return take_snapshot(self.session, state, compiled, inspections), take_snapshot(
            self.session, pinned, inspections=inspections
        ) if pinned else None

    def stream(self, message: Json) -> AsyncIterator[Slots]:
        """Return the open view's slower parts: compiled results, slow predictions, running sweeps and new captures.

        Raises:
            ConfigError: if the view cannot be drawn, also during the iteration.
        """
        if script := self.scripts.find(message):
            return self.scripts.watch(script)
        return self._stream_view(self.read(message))

    async def _stream_view(self, state: State) -> AsyncIterator[Slots]:
        panels = self.panels[state.view.tab]
        client = current_client()
        snapshots = self.take_snapshots(state)
        outcome: Compiled | Failure | None = None
        missing, _ = _find_missing(panels, snapshots)
        if missing:
            compiles = [self.session.compile(experiment, client=client) for experiment in missing]
            async for seconds in _wait(compiles):
                if waiting := merge(panel.draw_waiting(snapshots[0], seconds) for panel in panels):
                    yield waiting
            outcome = self.session.find_compiled(state.experiment) or compiles[0].result()
            if problems := explain_at_knobs(outcome):
                yield {"problems": problems_value(problems)}
            snapshots = self.take_snapshots(state, outcome)
        _, missing = _find_missing(panels, snapshots)
        drawn = Slots()
        if missing:
            drawn = await run_in_slot(draw_view, panels, *snapshots)
            yield drawn
            inspections = [self.session.inspect(experiment, client) for experiment in missing]
            async for _ in _wait(inspections):
                pass
            results = {
                experiment: inspection.result()
                for experiment, inspection in zip(missing, inspections, strict=True)
            }
            snapshots = self.take_snapshots(state, outcome, results)
        inspection = snapshots[0].inspected
        if isinstance(inspection, tuple) and _has_trials(panels, snapshots[0]):
            drawn = await run_in_slot(draw_view, panels, *snapshots)
            yield drawn
            trials = self.session.try_changes(state.experiment, inspection, client)
            async for _ in _wait([trials]):
                pass
            snapshots = self.take_snapshots(state, outcome)
        estimate_s = draw_seconds(panels, *snapshots)
        if estimate_s > NEAR_S:
            work = self.predictions.submit(
                draw_in_process, *snapshots, client=client, estimate_s=estimate_s
            )
            async for _ in _wait([work]):
                pass
            drawing = work.result()
            if isinstance(drawing, Failure):
                raise ConfigError(drawing.kind, drawing.message)
            yield drawing
        elif any(panel.uses_compiler for panel in panels):
            drawing = await run_in_slot(draw_view, panels, *snapshots)
            # A listing that is drawn again would lose its scroll position.
            yield {name: value for name, value in drawing.items() if value != drawn.get(name)}
        for panel in panels:
            async for slots in self._follow(panel.stream_updates(snapshots[0])):
                yield slots

    async def _follow(self, updates: Generator[Slots, None, None]) -> AsyncIterator[Slots]:
        try:
            while (slots := await asyncio.to_thread(next, updates, None)) is not None:
                yield slots
                await asyncio.sleep(self.live_s)
        finally:
            with suppress(ValueError):  # a thread is still running it, and will close it
                updates.close()


async def _wait(futures: Sequence[Future[Any]]) -> AsyncIterator[float]:
    """Wait until all futures end, and yield the elapsed seconds. Cancel the futures if the caller leaves."""
    pending = {asyncio.wrap_future(future) for future in futures}
    try:
        for seconds in itertools.count(_PROGRESS_S, _PROGRESS_S):
            _, pending = await asyncio.wait(pending, timeout=_PROGRESS_S)
            if not pending:
                return
            yield seconds
    finally:
        for future in futures:
            future.cancel()


def explain_at_knobs(outcome: Compiled | Failure | None) -> dict[str, str]:
    """Return why a config cannot launch, by the knob to change; {} if it can, or if that is unknown."""
    if isinstance(outcome, Failure) and outcome.field:
        return {outcome.field: outcome.message}
    return {}


def shown_fields(message: Json) -> dict[str, str]:
    """Return the fields in the address of what the page shows; {} if it shows nothing yet."""
    return dict(urllib.parse.parse_qsl(str(message.get("shown", ""))))


def refused(error: ConfigError) -> Slots:
    """Show an error next to the control that caused it."""
    return {"problems": problems_value({error.field: str(error)})}


def create_panels() -> dict[str, list[Panel]]:
    """Return new panels by the name of their tab."""
    return {tab.name: [panel() for panel in tab.panels] for tab in TABS}


def draw_seconds(panels: Sequence[Panel], snapshot: Snapshot, pinned: Snapshot | None) -> float:
    """Estimate the core seconds of `draw_view` beyond those of a small launch."""
    again = 2 if pinned else 1  # the comparison predicts the numbers of both once more
    return again * sum(
        panel.seconds(each) for each in (snapshot, pinned) if each for panel in panels
    )


def _title(state: State) -> str:
    problem = state.experiment.problem
    return f"{state.kernel.id} · {shape_text(problem)} {problem.dtype} · {state.gpu.name}"


def _find_missing(
    panels: Sequence[Panel], snapshots: Iterable[Snapshot | None]
) -> tuple[list[Experiment], list[Experiment]]:
    """Return the view's experiments that are not compiled yet, and those that are compiled, but not inspected yet."""
    shown = [each for each in snapshots if each]
    compiles = [each.state.experiment for each in shown if not (each.compiled or each.failure)]
    inspections = [each.state.experiment for each in shown if each.compiled and not each.inspected]
    return (
        compiles if any(panel.uses_compiler for panel in panels) else [],
        inspections if any(panel.uses_inspection for panel in panels) else [],
    )


def _has_trials(panels: Sequence[Panel], snapshot: Snapshot) -> bool:
    """Return whether the view shows changes that may shorten the launch, and are not compiled yet."""
    if not any(panel.tries_changes for panel in panels):
        return False
    state = snapshot.state
    inspected = snapshot.inspected
    return isinstance(inspected, tuple) and bool(
        list_trials(state.experiment, state.gpu, inspected[0])
    )


def draw_view(panels: Sequence[Panel], snapshot: Snapshot, pinned: Snapshot | None) -> Slots:
    """Fill a view's slots from a snapshot, with a pinned experiment's values beside them.

    Raises:
        ConfigError: if it cannot be drawn.
    """
    return compare.add_comparison(
        merge(panel.draw(snapshot) for panel in panels), snapshot, pinned, panels
    )


def draw_in_process(snapshot: Snapshot, pinned: Snapshot | None) -> Slots:
    """Call `draw_view` in a prediction process. If the view cannot be drawn, return a sentence that says why."""
    try:
        return draw_view(create_panels()[snapshot.state.view.tab], snapshot, pinned)
    except ConfigError as error:
        return refused(error)
