"""The page's replies to messages, without a browser; and Pin."""

import asyncio
import json
import re
import urllib.parse
from concurrent.futures import Future
from dataclasses import replace

import pytest

from tests.experiments import fields
from tests.messages import decode, links, opened, settings_of, text_of, updates
from tests.waiting import until
from tilescope.declare.knobs import ConfigError
from tilescope.measure.measurement import Job
from tilescope.measure.session import MEASUREMENTS
from tilescope.measure.timeline import TIMELINE
from tilescope.results import Failure, records
from visualize.views.slots import ENABLED, NONE, REDRAW, WATCH
from visualize.views.tabs import TITLES, read_state, short_address
from visualize.web.actions import Actions, encode
from visualize.web.page import layout
from visualize.web.redraw import draw_view

RUN = MEASUREMENTS["run"]


# More than a schedule may have
MANY_TILES = "transpose.tiled M=16384 N=16384 BLOCK_M=1 BLOCK_N=1"


def change(page, flat, shown=""):
    """Return the slots that a change to these fields fills immediately.

    Args:
        shown: the slots of an earlier update, which the page shows.
    """
    address = json.loads(shown["link"])["full"] if shown else ""
    return page.change(settings_of(flat, shown=address))


def stream(page, flat):
    """Return the updates that follow for these fields."""
    return updates(page.stream(settings_of(flat, watch=ENABLED)))


def press(page, flat, action):
    """Return the updates of an action."""
    return updates(Actions(page).start(settings_of(flat, action=action), "page"))


RECORDED_RUN = records.find(RUN.form, records.experiments(RUN.form, "H200")[0], "H200")


def test_a_config_that_nobody_chose_follows_the_gpu(page):
    """The published default of fused_add_relu needs more shared memory than RTXPRO6000 has."""

    def turn_to(gpu, config):
        """Choose a GPU in the menu; the other controls hold this config. Return the new settings."""
        nonlocal shown
        shown = change(page, {**fields(f"matmul.fused_add_relu gpu={gpu}"), **config}, shown)
        return json.loads(shown["settings"])

    def config_of(settings):
        return {name: settings[name] for name in published}

    published = vars(opened("matmul.fused_add_relu").experiment.config)
    shown = change(page, "matmul.fused_add_relu")
    offered = config_of(turn_to("RTXPRO6000", published))
    assert offered != published
    assert config_of(turn_to("H200", offered)) == published
    assert config_of(turn_to("RTXPRO6000", published)) == offered
    chosen = {**offered, "GROUP_SIZE": 3}
    assert config_of(turn_to("H200", chosen)) == chosen


async def test_a_page_that_leaves_the_stream_cancels_its_compile(page):
    compiled = Future()
    page.session.compiler = lambda: compiled
    stream = page.stream(settings_of("tab=compiler", watch=ENABLED))
    await anext(stream)
    await stream.aclose()
    await asyncio.to_thread(until, compiled.cancelled)


def test_a_reply_says_whether_more_follows(page):
    slots = change(page, "M=640")
    assert "M=640" in slots["link"]
    assert slots["program-order-plot"]
    assert slots[WATCH], "the kernel is not compiled yet"
    assert not change(page, "tab=scoreboard")[WATCH]
    assert set(page.change({})) == {"problems"}, "more of the settings before may follow"


def test_a_value_that_cannot_be_drawn_is_refused_next_to_its_control(page):
    failed = Future()
    failed.set_result(Failure("compile", "timeout", "It took too long."))
    page.session.compiler = lambda: failed
    assert change(page, f"tab=program-order {MANY_TILES}")[WATCH]
    with pytest.raises(ConfigError, match="268,435,456 tiles are too many") as refused:
        stream(page, f"tab=program-order {MANY_TILES}")
    assert (refused.value.field, refused.value.kind) == ("BLOCK_M", "too_many_tiles")


def test_without_a_gpu_a_timeline_is_the_recorded_one_or_a_sentence(page):
    def last_update(flat):
        ended = press(page, flat, "record-timeline")[-1]
        return ended | (change(page, flat) if REDRAW in ended else {})

    first, *others = records.experiments(TIMELINE.form, "H200")
    recorded = {**first.to_address(), "gpu": "H200", "tab": "program-order"}
    last = last_update(recorded)
    assert "256 programs" in last["timeline"]
    assert last["gantt-plot"]
    loops = next(experiment for experiment in others if experiment.kernel == "matmul.persistent")
    last = last_update({**loops.to_address(), "gpu": "H200", "tab": "program-order"})
    assert "tiles; their equal times are" in last["timeline"]
    last = last_update({**recorded, "GROUP_SIZE": 3})
    assert "no timeline of this experiment on H200 was recorded" in last["status"]
    assert set(last) <= {"problems", "status", "cancel"}, "the picture stays"
    no_timeline = change(page, {**recorded, "GROUP_SIZE": 3})["timeline"]
    assert "No timeline of this experiment was recorded on H200" in no_timeline
    assert re.search(
        r'href="\?kernel=matmul.grouped&amp;M=2048&amp;.*gpu=H200&amp;tab=program-order',
        no_timeline,
    )


async def test_a_run_shows_its_progress_and_its_result_and_leaves_later_sentences(page):
    job = Job(page.session, RECORDED_RUN.experiment)
    page.session.submit = lambda *_, **__: job
    message = settings_of(RECORDED_RUN.experiment.to_address(), action="run")

    stream = Actions(page).start(message, "page")
    assert await anext(stream) == {"problems": "{}", "cancel": "enabled"}
    assert "starting" in (await anext(stream))["card"]
    job.done.set_result(RECORDED_RUN)
    (ended,) = [slots async for slots in stream]
    assert "problems" not in ended
    assert "✓ 0 wrong" in ended["card"]
    assert REDRAW in ended


async def test_a_page_has_one_measurement_which_ends_if_it_cancels_or_leaves(page):
    jobs = [Job(page.session, RECORDED_RUN.experiment) for _ in range(3)]
    submitted = iter(jobs)
    page.session.submit = lambda *_, **__: next(submitted)
    actions = Actions(page)

    def start(action):
        return actions.start(settings_of("", action=action), "page")

    first, second = start("run"), start("run")
    await anext(first)
    await anext(second)
    assert [job.is_cancelled for job in jobs] == [True, False, False]
    jobs[0].done.set_result(Failure("run", "cancelled", "Cancelled."))
    assert [slots async for slots in first] == []
    assert [slots async for slots in start("cancel")] == [{}]
    assert jobs[1].is_cancelled
    jobs[1].done.set_result(Failure("run", "cancelled", "Cancelled."))
    *_, ended = [slots async for slots in second]
    assert "Cancelled." in ended["card"]
    third = start("run")
    await anext(third)
    await third.aclose()
    assert jobs[2].is_cancelled


@pytest.mark.parametrize("query", ["", "?kernel=matmul.grouped&tab=result"])
def test_the_opening_and_the_default_kernel_show_a_check_before_any_run(page, query):
    slots = page.change({"open": query})
    assert "0 wrong" in slots["card"]
    assert "Error of C" in str(decode(slots["diff-plot"])["layout"]["title"])


def test_a_kernel_that_is_compiled_during_a_redraw_is_drawn_in_the_stream(compiling, monkeypatch):
    page = compiling
    compiled = page.session.compile(opened("gpu=H200").experiment).result()
    finds = iter([None, None, None])
    monkeypatch.setattr(page.session, "finder", lambda _: next(finds, compiled))
    assert change(page, "tab=requests gpu=H200")[WATCH]
    assert stream(page, "tab=requests gpu=H200")[-1]["request-plot"]


def test_an_inspection_follows_in_the_stream(compiling):
    page = compiling
    inside = "tab=shared-memory kernel=transpose.tiled"
    first = change(page, inside)
    assert text_of(first["shared-memory-headline"]) == "Compiling for H200"
    assert first[WATCH]
    last = stream(page, inside)[-1]
    assert text_of(last["shared-memory-headline"]).startswith("No bank conflicts predicted")
    assert last["shared-memory-plot"] == NONE
    assert "shared-memory-plot" not in change(page, inside), "another process draws it"


def test_a_config_that_cannot_launch_says_why_at_its_tile_in_every_view(compiling):
    text = "kernel=matmul.grouped gpu=H200 BLOCK_N=256 BLOCK_K=128 num_stages=4 tab="
    (said,) = (
        each["problems"] for each in stream(compiling, text + "program-order") if "problems" in each
    )
    assert "H200 allows 232,448" in json.loads(said)["BLOCK_M"]
    assert change(compiling, text + "requests")["problems"] == said, "it is known now"


def test_the_memory_map_follows_the_listing_which_stays(compiling):
    *_, compiled, inspected = stream(compiling, "tab=compiler kernel=transpose.tiled BLOCK_M=16")
    assert compiled["memory-map-plot"] == NONE
    assert decode(inspected["memory-map-plot"])["data"]
    assert "listing" in compiled.keys() - inspected.keys()


def test_the_times_of_compiled_changes_follow_in_the_stream(compiling):
    page = compiling
    result = "tab=result kernel=matmul.grouped gpu=H100"
    before, after = (text_of(each["predicted-time"]) for each in stream(page, result)[-2:])
    assert "(predicted without compiling)" in before
    assert "(compiled and predicted)" not in before
    experiment = opened(fields(result)).experiment
    inside, _ = page.session.find_inspection(experiment)
    compiled = [each for each in inside.changes if each.is_compiled]
    assert 1 <= len(compiled) <= 2
    for change_of_time in compiled:
        config = replace(experiment.config, **change_of_time.options)
        changed, _ = page.session.inspect(replace(experiment, config=config)).result()
        assert change_of_time.predicted_us == changed.predicted_us
    best = min(compiled, key=lambda each: each.predicted_us)
    assert f"With {best.change}, the launch would take {best.predicted_us:.2f} µs" in after
    assert not change(page, result)[WATCH]


def test_every_slot_that_a_handler_fills_is_on_the_page(page):
    html = layout(page)
    for tab in TITLES:
        for measurement in MEASUREMENTS.values():
            recorded = records.experiments(measurement.form, "H200")[0]
            state = opened({**recorded.to_address(), "gpu": "H200", "tab": tab})
            missing = [
                name
                for name in page.fill(state) | page.draw(state)[0]
                if f'id="{name}"' not in html
            ]
            assert not missing, (tab, measurement.name)


def test_an_update_takes_less_than_150_kilobytes(page):
    for flat in (
        "tab=program-order M=16384 N=16384 BLOCK_M=16 BLOCK_N=16 step=5",  # a million programs
        "transpose.tiled tab=requests model=textbook operation=1 request=200",
    ):
        state = opened(flat)
        slots = draw_view(page.panels[state.view.tab], *page.take_snapshots(state))
        assert 10_000 < len(encode(slots)) < 150_000


PINNED = "kernel=matmul.grouped&M=576&N=576&K=288&BLOCK_N=64&GROUP_SIZE=1"
SET = f"M=576 N=576 K=288 BLOCK_M=64 BLOCK_N=64 GROUP_SIZE=3 with={PINNED}"


def followed(page, query):
    return page.change({"follow": query})


def test_only_with_a_pinned_experiment_a_slot_holds_two_values(shared_page):
    own = change(shared_page, f"{SET} with=")
    assert " " not in own["program-order-plot"]
    assert "pinned" not in own["program-order-headline"]
    assert dict(links(own["compare"])).keys() == {"Pin"}
    both = change(shared_page, SET)
    pinned = change(shared_page, dict(urllib.parse.parse_qsl(PINNED)))
    assert both["program-order-plot"].split(" ") == [
        own["program-order-plot"],
        pinned["program-order-plot"],
    ]
    columns = '<div class="beside"><div class="own">{}</div><div class="pinned">{}</div></div>'
    assert both["program-order-headline"] == columns.format(
        own["program-order-headline"], pinned["program-order-headline"]
    )


def test_the_strip_names_differences_and_a_few_numbers_and_folds_the_table_of_all(shared_page):
    strip, table = change(shared_page, f"{SET} first=9")["compare"].split("<details>")
    assert "Pinned → now: GROUP_SIZE 1 → <b>3</b>." in strip
    assert "blocks for the first 9 programs 90 → <b>54</b> (0.600 ×)</span>" in strip
    assert ">M<" not in table, "equal knobs are left out"
    assert all(word in table for word in ("GROUP_SIZE", "waves", "same", "0.600 ×"))


def test_talk_mode_names_both_experiments(shared_page):
    flat = "kernel=matmul.grouped&M=512&N=512&K=512"
    link = json.loads(change(shared_page, f"M=1024 N=512 K=512 with={flat}")["link"])
    assert link["title"] == (
        "Now: matmul.grouped · 1024 × 512 × 512 float16 · H200. "
        "Pinned: matmul.grouped · 512 × 512 × 512 float16 · H200"
    )


def test_the_pinned_picture_shows_the_same_operation_although_another_one_wastes_more(shared_page):
    own = "matmul.grouped tab=requests model=textbook BLOCK_M=128 BLOCK_N=64"
    wide = "kernel=matmul.grouped&BLOCK_M=64&BLOCK_N=128"
    titles = (
        change(shared_page, flat)["flow-title"]
        for flat in (own, f"{own} BLOCK_M=64 BLOCK_N=128", f"{own} with={wide}")
    )
    operations = [re.findall("load [AB]", title) for title in titles]
    assert operations == [["load A"], ["load B"], ["load A", "load A"]]


@pytest.mark.parametrize("tab", TITLES)
def test_two_kernels_of_two_families_are_compared_on_every_tab(shared_page, tab):
    answer = change(shared_page, f"transpose.tiled tab={tab} operation=1 with={PINNED}")
    assert "kernel matmul.grouped → <b>transpose.tiled</b>" in answer["compare"]
    assert "<td>–</td>" in answer["compare"], "a transpose has no K"


TILES = "BLOCK_M=128&BLOCK_N=128&BLOCK_K=32&GROUP_SIZE=4&num_warps=4&num_stages=3"
RECORDED = f"kernel=matmul.grouped&gpu=H200&M=4096&N=4096&K=4096&{TILES}"


def test_a_pinned_run_is_beside_the_current_experiment_and_not_beside_an_older_run(page):
    """The page showed the pinned run, and then a setting changed."""
    before = followed(page, f"{RECORDED}&tab=result&{urllib.parse.urlencode({'with': RECORDED})}")
    assert before["result"].count("the speed of torch.matmul") == 2
    flat = {**json.loads(before["settings"]), "num_warps": 2}
    answer = change(page, flat, before)
    now, pinned = answer["result"].split('<div class="pinned">')
    assert "No result for this config" in now
    assert "the speed of torch.matmul" in pinned
    assert answer["time-plot"].startswith(f"{NONE} ")
    assert answer["predicted-time"].count("Predicting the time from the compiled code…") == 2
    assert "time-plot" not in change(page, {**flat, "tab": "requests"}, answer)


def test_a_link_holds_both_swap_exchanges_them_and_another_kernel_keeps_the_pinned_one(shared_page):
    state = opened(SET)
    for address in (state.to_address(), short_address(state)):
        assert read_state(address, None) == state
    swapped = opened(dict(links(change(shared_page, SET)["compare"]))["Swap"])
    assert (swapped.experiment, swapped.pinned) == (state.pinned, state.experiment)
    other = {**state.to_settings(), "form_of": "matmul.grouped", "kernel": "matmul.persistent"}
    assert json.loads(shared_page.change({"settings": other})["settings"])["with"] == PINNED


@pytest.mark.parametrize(
    "wrong",
    [
        "kernel=sort",
        "M=5",
        "kernel=matmul.grouped&M=0",
        "x" * 1001,
        "kernel=matmul.grouped&gpu=this",
    ],
)
def test_an_invalid_pinned_experiment_is_refused_and_the_rest_opens(shared_page, wrong):
    query = urllib.parse.urlencode(fields(f"matmul.grouped M=640 with={wrong}"))
    answer = followed(shared_page, query)
    assert "pinned" in json.loads(answer["problems"])["with"]
    assert "M=640" in answer["link"]


def test_a_pinned_experiment_that_cannot_be_drawn_says_why_beside_the_current_one(shared_page):
    pinned = MANY_TILES.replace(" ", "&")
    answer = change(shared_page, f"transpose.tiled M=64 tab=program-order with=kernel={pinned}")
    assert "tiles are too many" in answer["compare"]
    assert " " not in answer["program-order-plot"]
    assert json.loads(answer["problems"]) == {}
