"""One search at several sizes: what is swept, in which order, the ratio to the library, and the article's preset."""

from __future__ import annotations

import html
import re
import urllib.parse

import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.knobs import ConfigError
from kernels.results import Strategy
from kernels.results.store import Store
from kernels.sweep.sweep_run import refuse_configs
from tests.figure_values import decode
from tests.panels.sweeps_made_up import Session, ask, finished, state_of
from tests.waiting import until
from visualize.views.plot import NONE
from visualize.views.snapshot import Snapshot
from visualize.views.tabs import SETTINGS
from visualize.views.tune.view import MAX_SIZES, swept_sizes
from visualize.web.controls import presets, with_preset

OVER = {"sweep_over": "K=256,512,1024", "sweep_strategy": "grid", "sweep_picture": "library"}
GPU = GPUS["H200"]


def text_of(markup):
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", str(markup)).split()))


def pressed(panel, session, state, anew=False):
    """What pressing Sweep answers."""
    (answer,) = ask(panel, "sweep-anew" if anew else "sweep-start", session, state)
    return answer


def wait(panel, session, state):
    """Until each size was swept."""
    for space in swept_sizes(state)[1].values():
        finished(panel.sweeps, space, store=session.store)
    until(lambda: not panel.has_live_updates(Snapshot(state)))


def test_each_size_is_swept_for_itself_one_after_the_other(panel, started, store):
    session, state = Session(store), state_of(**OVER)
    started.go.clear()
    drawn = pressed(panel, session, state)
    assert "K 256: 0 of 8 configs done" in text_of(drawn["sweep-progress"])
    assert drawn["sweep-plot"] == NONE
    assert panel.has_live_updates(Snapshot(state, store=store))
    assert panel.has_live_updates(Snapshot(state_of(K=256), store=store)), "it is the sweep of that size"
    started.go.set()
    wait(panel, session, state)
    bases = [device.trials[0].experiments[0].problem.K for device in started.devices]
    assert bases == [256, 512, 1024]
    assert [one.details["space"]["experiment"]["problem"]["K"] for one in store.sweeps(5)] == [1024, 512, 256]
    assert not panel.has_live_updates(Snapshot(state, store=store))


def test_the_library_is_shown_beside_the_best_of_each_size_with_its_interval(panel, started, store):
    session, state = Session(store), state_of(**OVER)
    pressed(panel, session, state)
    wait(panel, session, state)
    drawn = panel.draw(Snapshot(state, store=store))
    figure = decode(drawn["sweep-plot"])
    assert figure["layout"]["xaxis"]["title"]["text"] == "K"
    assert figure["layout"]["yaxis"]["title"]["text"] == "ratio, measured"
    (trace,) = figure["data"]
    assert (trace["name"], trace["x"]) == ("torch.matmul", ["256", "512", "1024"])
    for ratio, more, less, space in zip(
        trace["y"], trace["error_y"]["array"], trace["error_y"]["arrayminus"],
        swept_sizes(state)[1].values(), strict=True,
    ):  # fmt: skip
        (library,) = panel.sweeps.find(store, space, GPU).final.baselines
        assert ratio == library.ratio
        assert (ratio + more, ratio - less) == pytest.approx((library.high, library.low))
    said = text_of(drawn["sweep-claim"])
    assert re.match(r"\d\.\d\d × measured at K [\d,]+: torch\.matmul time / best config's time", said)
    assert "95 % interval" in said
    links = re.findall(r'href="\?([^"]+)"', drawn["sweep-table"])
    sizes = [SETTINGS.state(dict(urllib.parse.parse_qsl(one.replace("&amp;", "&"))), None) for one in links]
    assert [one.experiment.problem.K for one in sizes] == [256, 512, 1024]
    assert "torch.matmul / best" in text_of(drawn["sweep-table"])


def test_pressed_again_it_sweeps_what_is_left_and_anew_everything(panel, started, store):
    session, state = Session(store), state_of(**OVER)
    own = swept_sizes(state)[1]
    panel.sweeps.start(session, [own[512]], Strategy("grid"))
    finished(panel.sweeps, own[512], store=store)
    pressed(panel, session, state)
    wait(panel, session, state)
    assert [device.trials[0].experiments[0].problem.K for device in started.devices] == [512, 256, 1024]
    pressed(panel, session, state, anew=True)
    wait(panel, session, state)
    assert [device.trials[0].experiments[0].problem.K for device in started.devices[3:]] == [256, 512, 1024]


def test_a_cancel_ends_all_that_was_to_follow(panel, started, store):
    session, state = Session(store), state_of(**OVER)
    started.go.clear()
    pressed(panel, session, state)
    (said,) = ask(panel, "sweep-cancel", session, state)
    assert "Cancelling" in said["sweep-progress"]
    assert finished(panel.sweeps, swept_sizes(state)[1][256], store=store).ended == "cancelled"
    assert len(started.devices) == 1
    said = text_of(panel.draw(Snapshot(state, store=store))["sweep-claim"])
    assert said == "3 sizes of K to sweep. Library ratios need a GPU."


def test_a_cancel_between_two_sizes_ends_what_was_to_follow(panel, started, store_path):
    class StoreThatCancels(Store):
        """The user cancels as the end of a sweep is stored."""

        def end_sweep(self, *given):
            ask(panel, "sweep-cancel", session, state)
            return super().end_sweep(*given)

    store = StoreThatCancels(store_path)
    session, state = Session(store), state_of(**OVER)
    with panel.sweeps.watched("page"):
        pressed(panel, session, state)
        assert finished(panel.sweeps, swept_sizes(state)[1][256], store=store).ended == "complete"
        assert len(started.devices) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("K", "sweep_over must be KNOB=VALUE,VALUE"),
        ("BLOCK_M=64", "sweep_over is 'BLOCK_M=64'; it takes one of M, N, K and its sizes, as in K=512,1024."),
        ("K=64 M=64", "it takes one of M, N, K"),
        ("dtype=float16", "it takes one of M, N, K"),
        ("K=0", "K must be a whole number from 1 to 16384 (got 0)."),
        (f"K={','.join(str(size) for size in range(1, 14))}", f"13 sizes are given; at most {MAX_SIZES} are allowed."),
    ],
)
def test_sizes_that_make_no_sense_are_told_beside_their_field(text, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        swept_sizes(state_of(sweep_over=text))
    assert error.value.field == "sweep_over"


def test_no_size_named_is_the_shape_that_is_set(panel, store):
    assert swept_sizes(state_of()) == ("", {})
    drawn = panel.draw(Snapshot(state_of(sweep_picture="library"), store=store))
    assert drawn["sweep-plot"] == NONE


def test_the_article_s_grid_search_is_a_preset_of_the_fused_kernel():
    kernel = discover()["matmul.fused_add_relu"]
    (number,) = (n for n, title in enumerate(presets(kernel)) if "grid search" in title)
    state = SETTINGS.state(with_preset({}, kernel, number, None), None)
    dimension, sizes = swept_sizes(state)
    assert state.view.tab == "sweep"
    assert (dimension, list(sizes)) == ("K", [512, 1024, 2048, 4096, 8192, 16384])
    for space in sizes.values():
        assert [name for name, _ in space.varied] == ["BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps"]
        left = space.size - len(refuse_configs(space, GPUS["H200"]))
        assert 20 < left <= space.size == 54
