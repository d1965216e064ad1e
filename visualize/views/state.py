"""State: what the page is set to, read from its forms or its address, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernels import discover, experiment
from kernels.experiment import Experiment, Run
from kernels.gpus import Gpu
from kernels.knobs import ConfigError, knobs, quote, read_fields
from kernels.spec import Kernel, Launch
from visualize.views import pin
from visualize.views.options import View

DEFAULT_KERNEL = "matmul.grouped"


@dataclass(frozen=True)
class State:
    """An Experiment and a View, with the kernel and the GPU that they name.

    Attributes:
        pinned: the Experiment that this one is compared with; None without one.
    """

    experiment: Experiment
    view: View
    kernel: Kernel
    gpu: Gpu
    pinned: Experiment | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """As it is sent to another process, which has the same kernels."""
        return _sent, (self.experiment, self.view, self.gpu, self.pinned)

    @property
    def launch(self) -> Launch:
        return Launch(self.experiment.problem, self.experiment.config, self.gpu)

    def to_address(self) -> dict[str, Any]:
        return {**self.experiment.to_address(), **self.view.to_address(), **self._pin()}

    def to_settings(self) -> dict[str, Any]:
        """What the page's controls are set to: the fields of its address, and the kernel that they were made for."""
        return {**self.to_address(), "gpu": self.experiment.gpu, "form_of": self.kernel.id}

    def moved_to(self, **fields: object) -> dict[str, Any]:
        """A short address of this state with some fields set anew, for a link; what is set to "" is left out."""
        moved = {**self.experiment.short_address(), **self.view.short_address(), **self._pin(), **fields}
        return {name: value for name, value in moved.items() if value != ""}

    def twin(self, this: Gpu | None) -> State | None:
        """What is pinned, looked at in the same way; None where nothing is."""
        if self.pinned is None:
            return None
        options = tuple(pin.fitting(one, self.experiment.kernel, self.pinned) for one in self.view.options)
        gpu = experiment.resolve_gpu(self.pinned, this)
        return State(self.pinned, View(self.view.tab, options), discover()[self.pinned.kernel], gpu)

    def _pin(self) -> dict[str, str]:
        return {pin.FIELD: pin.to_text(self.pinned.short_address())} if self.pinned else {}


def _sent(chosen: Experiment, view: View, gpu: Gpu, pinned: Experiment | None) -> State:
    return State(chosen, view, discover()[chosen.kernel], gpu, pinned)


@dataclass(frozen=True)
class Settings:
    """What can be set on a page besides an Experiment.

    Attributes:
        tabs: their names; `opened` is the one that is open at first.
        options: the types of the panels' options, dataclasses of knobs. One may have a method `refuse(problem)`, which
            raises ConfigError where the two don't go together, and say `of_kernel = True`: what is chosen in it means
            nothing to another kernel.
        opening: flat fields of what is shown where the address says nothing.
    """

    tabs: tuple[str, ...]
    opened: str
    options: tuple[type, ...]
    opening: Mapping[str, object] = field(default_factory=dict)

    def state(self, flat: Mapping[str, object], this: Gpu | None) -> State:
        """Read a page from flat fields (an address', or all forms' together); what is left out takes its default.

        Args:
            this: this machine's GPU, or None.

        Raises:
            ConfigError: with the field that caused it.
        """
        kernels = discover()
        chosen = experiment.from_json(experiment.nest({"kernel": DEFAULT_KERNEL, **flat}))
        options = []
        for declared in self.options:
            one = read_fields(declared, {k: flat[k] for k in knobs(declared) if k in flat}, declared.__name__)
            if refuse := getattr(one, "refuse", None):
                refuse(chosen.problem)
            options.append(one)
        tab = flat.get("tab", self.opened)
        if tab not in self.tabs:
            raise ConfigError("not_a_choice", f"tab is {quote(tab)}; allowed are {', '.join(self.tabs)}.", "tab")
        gpu = experiment.resolve_gpu(chosen, this)
        pinned = pin.pinned(flat.get(pin.FIELD), this)
        return State(chosen, View(str(tab), tuple(options)), kernels[chosen.kernel], gpu, pinned)

    def short_address(self, state: State) -> dict[str, Any]:
        """The fields of an address that differ from what it takes without them; the kernel is always named."""
        usual = self.state({"kernel": state.kernel.id}, state.gpu).to_address()
        differing = {name: value for name, value in state.to_address().items() if usual.get(name) != value}
        return {"kernel": state.kernel.id, **differing}

    def forgiving_state(self, flat: Mapping[str, object], this: Gpu | None) -> tuple[State, dict[str, str]]:
        """The same, but what is wrong takes its default, and a sentence says so: for an address that somebody typed."""
        kept = dict(flat)
        sentences: dict[str, str] = {}
        while True:
            try:
                return self.state(kept, this), sentences
            except ConfigError as error:
                sentences[error.field] = str(error)
                if error.field not in kept:
                    kept = {}
                kept.pop(error.field, None)

    def with_kernel(self, current: Mapping[str, object], kernel: str) -> dict[str, object]:
        """Fields for another kernel: the problem survives within a family, the config starts at the kernel's defaults.

        How it is run and drawn stays as it is, but for options that are a kernel's own.
        """
        declared = experiment.find_kernel(kernel)
        kept = ["gpu", pin.FIELD, *knobs(Run)]
        for options in self.options:
            kept += [] if getattr(options, "of_kernel", False) else list(knobs(options))
        before = experiment.find_kernel(current.get("form_of"))
        if before.family.root is declared.family.root:
            kept += list(knobs(declared.family.problem))
        if current.get("dtype") not in (declared.problem_knobs()["dtype"].choices or ()):
            kept = [name for name in kept if name != "dtype"]
        return {"kernel": kernel, **{name: current[name] for name in kept if name in current}}
