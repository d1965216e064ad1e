"""Text as values, the glossary, tables, and paragraphs about pending and failed results.

A text renders to HTML for the page (`__html__`) and to plain text for the API (`str`). A sentence is a template with
values. MarkupSafe escapes every value that is not markup.
"""

import functools
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from markupsafe import Markup, escape

from tilescope.declare.experiment import Experiment, Run
from tilescope.declare.knobs import knobs
from tilescope.declare.spec import explain_slow_launch, shape_text
from tilescope.measure.run import RUN
from tilescope.numbers import SOURCES, count_noun, join_names
from tilescope.results import Counters, Failure, Measured, records
from visualize.views.slots import template
from visualize.views.state import State, query

FILE = Path(__file__).resolve().parents[2] / "docs" / "glossary.md"


@functools.cache
def glossary() -> Mapping[str, Mapping[str, str]]:
    """Return the terms of each section, with their meanings in one line."""
    sections = {}
    for section in FILE.read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, *entries = section.split("\n### ")
        pairs = (entry.split("\n", 1) for entry in entries)
        sections[heading.strip()] = {term: " ".join(text.split()) for term, text in pairs}
    return sections


def meaning(term: str) -> str:
    """Return the meaning of a term.

    >>> meaning("line")
    '128 contiguous, aligned bytes: four sectors. A cache tag covers one line.'

    Raises:
        LookupError: the glossary does not define the term.
    """
    for terms in glossary().values():
        if term in terms:
            return terms[term]
    raise LookupError(f"{FILE.name} does not define {term!r}.")


def mark(source: str) -> Markup:
    """Return the small mark that names a number's source.

    Raises:
        ValueError: the source is not in SOURCES.
    """
    if source not in SOURCES:
        raise ValueError(f"A number comes from {source!r}; allowed are {', '.join(SOURCES)}.")
    return Markup('<span class="mark {0}" title="{1}">{0}</span>').format(source, meaning(source))


@dataclass(frozen=True)
class Inline:
    """A value with markup around it on the page. Plain text has only the value."""

    markup: ClassVar[Markup]
    value: Any

    def __str__(self) -> str:
        return str(self.value)

    def __html__(self) -> str:
        return self.markup.format(self)


class Strong(Inline):
    """An emphasized value, in bold on the page."""

    markup = Markup("<b>{0.value}</b>")


@dataclass(frozen=True)
class Sourced(Inline):
    """A value with its source, which the page shows as a small mark after it."""

    source: str

    def __html__(self) -> str:
        return Markup("{} {}").format(self.value, mark(self.source))


class Mark(Inline):
    """A source as a word of the sentence: a mark on the page, the word in plain text."""

    def __html__(self) -> str:
        return mark(self.value)


@dataclass(frozen=True)
class Hint(Inline):
    """A value with a hover text and a CSS class."""

    markup = Markup('<span title="{0.title!s}" class="{0.style}">{0.value}</span>')
    title: Any = ""
    style: str = ""


@dataclass(frozen=True)
class Term(Inline):
    """A glossary term with its definition as hover text. It opens the glossary."""

    markup = Markup(
        '<button type="button" class="term" popovertarget="glossary" value="{0.name}" title="{0.meaning}">{0.value}'
        "</button>"
    )
    name: str
    meaning: str


def term(name: str, shown: str = "") -> Term:
    """Return a glossary term. `shown` replaces the term itself."""
    return Term(shown or name, name, meaning(name))


_GLOSSARY = template(
    """
<dialog popover id="glossary" aria-labelledby="glossary-title">
<header><h2 id="glossary-title">Glossary</h2><button type="button" popovertarget="glossary">Close</button></header>
{% for heading, terms in sections.items() %}
<h3>{{ heading }}</h3>
<dl>{% for entry in terms.items() %}<div><dt>{{ entry[0] }}</dt><dd>{{ entry[1] }}</dd></div>{% endfor %}</dl>
{% endfor %}
</dialog>
"""
)


def glossary_dialog() -> Markup:
    """Return the glossary as a popover: `<button popovertarget="glossary">` opens it, without a script."""
    return _GLOSSARY(sections=glossary())


@dataclass(frozen=True)
class Code(Inline):
    """Source code, or a location in it."""

    markup = Markup('<code title="{0.title}">{0.value}</code>')
    title: str = ""


@dataclass(frozen=True)
class Sentence:
    """A `str.format` template and its values."""

    template: str
    values: tuple[Any, ...] = ()

    def __html__(self) -> str:
        return escape(self.template).format(*self.values)

    def __str__(self) -> str:
        return self.template.format(*self.values)


def say(template: str, *values: Any) -> Sentence:
    """Return a sentence.

    >>> sentence = say("The launch reads {} of {}.", Strong("4.2 GB"), "A & B")
    >>> str(sentence)
    'The launch reads 4.2 GB of A & B.'
    >>> sentence.__html__()
    Markup('The launch reads <b>4.2 GB</b> of A &amp; B.')
    """
    return Sentence(template, values)


def join(values: Iterable[Any], between: str = ", ") -> Sentence:
    """Return values with a separator between them."""
    parts = tuple(values)
    return Sentence(between.join(["{}"] * len(parts)), parts)


def html(sentences: Iterable[Any]) -> Markup:
    """Join sentences as HTML. Empty ones are omitted, and strings are escaped."""
    return Markup(" ").join(sentence for sentence in sentences if str(sentence))


def plain(sentences: Iterable[Any]) -> str:
    """Join sentences as plain text. Empty ones are omitted."""
    return " ".join(str(sentence) for sentence in sentences if str(sentence))


def lead(*sentences: Any) -> Markup:
    """Return the paragraph at the top of a tab."""
    return Markup('<p class="lead">{}</p>').format(html(sentences))


def hint(*sentences: Any) -> Markup:
    """Return a paragraph in a muted colour."""
    return Markup('<p class="hint">{}</p>').format(html(sentences))


@dataclass(frozen=True)
class Link(Inline):
    """A link to another state of the page.

    Attributes:
        query: the address without its question mark.
    """

    markup = Markup('<a href="?{0.query}">{0.value}</a>')
    query: str


_HEADLINE = template(
    """
<div class="headline">
{% if figure or what|string %}<p class="number{{ style }}"><b>{{ figure }}</b>{{ times }} {{ what }}</p>{% endif %}
<p class="lead">{{ sentence }}</p>
{% if more %}<details><summary>More</summary><div>{{ more }}</div></details>{% endif %}
</div>
"""
)


def headline(number: Any, what: Any, sentence: Any, *more: Any, is_failure: bool = False) -> Markup:
    """Return the headline of a tab.

    Args:
        number: the picture's main number, in large type; "" for none.
        what: the words beside it, such as "blocks instead of 90".
        sentence: why it matters, at most 25 words.
        more: further sentences, folded below "More". Empty ones are omitted.
        is_failure: whether to show the number in the colour of failures.
    """
    figure, times, _ = str(number).partition(" ×")
    return _HEADLINE(
        figure=figure,
        times=times,
        what=what,
        style=" wrong" * is_failure,
        sentence=html([sentence]),
        more=html(more),
    )


def dtype_text(problem: Any) -> str:
    """Return the problem's dtype, followed by its other choices, such as a layout, that are not the default."""
    usual = {**vars(type(problem)()), "dtype": problem.dtype}
    changed = [
        value
        for name, value in vars(problem).items()
        if isinstance(value, str) and value != usual[name]
    ]
    return ", ".join([problem.dtype, *changed])


def config_text(config: Any) -> str:
    """Return a config in short: tile, further knobs, warps, stages.

    >>> from tilescope.declare.experiment import from_json
    >>> config_text(from_json({"kernel": "matmul.grouped", "config": {"num_warps": 1}}).config)
    '64 × 128 × 32, GROUP_SIZE 4, 1 warp, 3 stages'
    """
    fields = dict(vars(config))
    tile = " × ".join(str(fields.pop(name)) for name in list(fields) if name.startswith("BLOCK"))
    warps = count_noun(fields.pop("num_warps"), "warp")
    stages = count_noun(fields.pop("num_stages"), "stage")
    return ", ".join(
        filter(None, [tile, *(f"{name} {value}" for name, value in fields.items()), warps, stages])
    )


def picture_caption(experiment: Experiment, gpu: str, *sources: str) -> str:
    """Return the line below a saved picture: kernel, problem, config, run fields that differ from the default, sources.

    >>> from tilescope.declare.experiment import from_json
    >>> picture_caption(from_json({"kernel": "transpose.flat"}), "H200", "recorded")
    'transpose.flat · M 1024, N 1024, float32 · BLOCK 1024, num_warps 4, num_stages 3 · H200 · recorded'

    Raises:
        ValueError: `sources` is empty or contains a word that is not in SOURCES.
    """
    if not sources or not set(sources) <= set(SOURCES):
        raise ValueError(f"A picture comes from {sources!r}; allowed are {', '.join(SOURCES)}.")
    run = {
        name: value for name, value in vars(experiment.run).items() if value != getattr(Run(), name)
    }
    problem = vars(experiment.problem)
    effective = {
        name: problem[name]
        for name, knob in knobs(type(experiment.problem)).items()
        if knob.only_with is None or problem[knob.only_with[0]] in knob.only_with[1]
    }
    parts = [
        ", ".join(
            f"{name} {value}" if isinstance(value, int) else value for name, value in fields.items()
        )
        for fields in (effective, vars(experiment.config), run)
    ]
    return " · ".join(
        filter(None, [experiment.kernel, *parts, gpu, join_names(list(dict.fromkeys(sources)))])
    )


def tag_experiment(experiment: Experiment, content: Markup, style: str = "") -> Markup:
    """Wrap the markup of an Experiment's result, which the page greys while the settings differ."""
    address = urllib.parse.urlencode(experiment.to_address())
    return Markup('<div class="{}" data-experiment="{}">{}</div>').format(style, address, content)


_TABLE = template(
    """
{% call frame(caption) %}
<thead><tr>
{% for name in header %}
{# A screen reader would announce an empty heading. #}
{% if name|string %}<th scope="col">{{ name }}</th>{% else %}<td></td>{% endif %}
{% endfor %}
</tr></thead>
<tbody>
{% for row in rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}{{ "<td></td>" | safe * (header|length - row|length) }}</tr>
{% endfor %}
</tbody>
{% endcall %}
"""
)


def table(header: Iterable[Any], rows: Iterable[Iterable[Any]], caption: Any = "") -> Markup:
    """Render an HTML table in a scrollable frame, with a button that saves its cells as CSV (see `table.js`).

    A cell is a `prose` value or anything that `str` accepts; strings are escaped. Cells that a row lacks are empty.
    """
    return _TABLE(header=[*header], rows=map(list, rows), caption=caption)


NOT_RUN = hint("No run of this config yet.")

_WAITING = Markup('<p class="hint" role="status">{}</p>')

_PROGRESS = template(
    """
<div class="status" role="status"><ol class="stages">
{% for stage in stages %}
<li class="{{ "done" if loop.index0 < current else "now" if loop.index0 == current else "todo" }}">{{ stage }}</li>
{% endfor %}
</ol><span>{{ note }}</span><span>{{ "%.1f"|format(seconds) }} s</span></div>
"""
)

_STAGES = {"cuda": ("compile", "launch", "check", "time"), "interpreter": ("launch", "check")}


def render_run_hint(has_gpu: bool, state: State, failure: Failure | None) -> Markup:
    """Render what Run does, for an experiment without a result, or why it would do nothing.

    Args:
        failure: of the compiler.
    """
    nearest = link_nearest(RUN.form, state, "result")
    if failure and failure.field:
        return hint(f"No result: this config cannot launch on {state.gpu.name}.", nearest)
    effect = "launch the kernel, check it against torch and time both."
    if not has_gpu:
        if slow := explain_slow_launch(state.kernel, state.launch):
            return hint("No result for this config.", slow, nearest)
        effect = "check the kernel against torch under Triton's interpreter, without timing."
    return hint(f"No result for this config. Press Run (Ctrl+Enter) to {effect}", nearest)


def link_nearest(form: records.RecordForm[Any], state: State, tab: str) -> Sentence | str:
    """Link to the most similar recording on the state's GPU; "" if the kernel has none there."""
    nearest = records.nearest(form, state.experiment, state.gpu.name)
    if nearest is None:
        return ""
    name = f"{shape_text(nearest.problem)} {dtype_text(nearest.problem)}, {config_text(nearest.config)}"
    link = Link(name, query({**nearest.to_address(), "gpu": state.gpu.name, "tab": tab}))
    return say("The most similar recording on {}: {}.", state.gpu.name, link)


def render_compiling(gpu: str, seconds: float | None = None) -> Markup:
    elapsed = "" if seconds is None else f": {seconds:.1f} s"
    return _WAITING.format(f"Compiling for {gpu}{elapsed}")


def render_predicting(seconds: float) -> Markup:
    return _WAITING.format(f"Predicting (about {max(1.0, seconds):.0f} s)")


def render_progress(backend: str, stage: str, before: int, seconds: float) -> Markup:
    """Render the progress of a run.

    Args:
        backend: "cuda" or "interpreter".
        stage: one of the backend's stages, "worker", or "queued".
        before: number of jobs in the queue before this one.
        seconds: since the request.
    """
    stages = _STAGES[backend]
    current = stages.index(stage) if stage in stages else -1
    notes = {
        "worker": "starting the worker",
        "queued": f"in the queue, {before} ahead of you" if before else "starting",
    }
    return _PROGRESS(stages=stages, current=current, note=notes.get(stage, ""), seconds=seconds)


def render_failure(failure: Failure) -> Markup:
    """Render a failure after the stage that it occurred in, except a bad argument, whose sentence needs no stage."""
    stage = Markup("") if failure.stage == "config" else Markup("<b>{}</b>: ").format(failure.stage)
    paragraph = Markup('<p class="failure" role="alert" data-kind="{}">{}{}</p>')
    return paragraph.format(failure.kind, stage, failure.message)


def render_alert(*sentences: object) -> Markup:
    """Render an error without naming a stage."""
    return Markup('<p class="failure" role="alert">{}</p>').format(html(sentences))


def render_end(outcome: Measured | Failure) -> Markup:
    """Render the status line of a job that has ended."""
    if isinstance(outcome, Failure):
        return render_failure(outcome)
    sentence = (
        f"Counted by {outcome.tool}."
        if isinstance(outcome, Counters) and not outcome.note
        else outcome.note
    )
    return Markup('<p class="status" role="status" data-finished="true">{}</p>').format(sentence)
