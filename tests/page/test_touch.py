"""The layer over the map, in a real browser: tiles that light up, are dragged and opened, and the L2 in the corner."""

import numpy as np
import pytest
from playwright.sync_api import expect

from kernels import discover
from kernels.gpus import GPUS
from kernels.spec import DTYPE_BYTES, Launch
from tests.page.conftest import Tab
from visualize.predict.l2 import CONSTANTS, evicted_share
from visualize.predict.reuse import by_group_size, reuse
from visualize.predict.schedule import Schedule, panels, row_major, schedule

pytestmark = pytest.mark.browser

ARTICLE = "?kernel=matmul.grouped&gpu=H200&M=576&N=576&K=288&BLOCK_M=64&BLOCK_N=64&BLOCK_K=32&GROUP_SIZE=3&first=9"

# Client coordinates of a place in a map, in tiles.
_PLACE = """([x, y, map]) => {
  const plot = document.querySelector('#schedule-plot .live-plot'), frame = plot.getBoundingClientRect();
  const { [`xaxis${map}`]: across, [`yaxis${map}`]: down } = plot._fullLayout;
  return [frame.x + across._offset + across.d2p(x), frame.y + down._offset + down.d2p(y)];
}"""


def place(tab: Tab, x: float, y: float, axis: str = "") -> tuple[float, float]:
    left, top = tab.page.evaluate(_PLACE, [x, y, axis])
    return left, top


def opened(tab: Tab, query: str = ARTICLE) -> None:
    tab.open(query)
    tab.wait_for_draw("schedule-plot")
    tab.page.wait_for_selector(".corner")
    tab.page.wait_for_timeout(400)


def drag(tab: Tab, handle: str, x: float, y: float) -> None:
    tab.page.locator(f".handle[data-name={handle}]").hover()  # once it no longer moves
    tab.page.mouse.down()
    tab.page.mouse.move(*place(tab, x, y), steps=4)
    tab.page.mouse.up()


def test_a_tile_lights_up_its_row_and_column_within_50_ms_and_opens_its_program_in_memory(tab: Tab) -> None:
    """In both maps; a block names its first reader. The first five visits explain what a block is."""
    opened(tab)
    before = len(tab.requests)
    explanation = "A block is what one step of its loop along K loads."
    tile = (
        "Program 7 ",
        "pid_m 1, pid_n 2, SM 7, group 0, wave 1",
        "Row 1 of A, 9 blocks: loaded before, by program 1.",
    )
    for axis, at, words, lit in (
        ("", (2.5, 1.5), (*tile, "Column 2 of B, 9 blocks: loaded before", explanation), 2),
        ("2", (2.5, 1.5), ("Program 11 ", "9 blocks: loaded before, by program 9.", "by program 2."), 2),
        ("", (-7.1, 3.5), ("A: pid_m 3, block 2 of K", "First read by program 27, SM 27, group 1, wave 1."), 0),
        ("2", (8.5, -9.2), ("B: pid_n 8, block 0 of K", "First read by program 8, SM 8, group 0, wave 1."), 0),
    ):
        tab.page.mouse.move(*place(tab, *at, axis))
        tab.page.wait_for_selector(".tile-tip:visible")
        assert all(word in tab.text(".tile-tip") for word in words)
        assert tab.page.locator(".touch svg rect[fill-opacity]").count() == lit
        tab.page.mouse.move(5, 5)
        tab.page.wait_for_selector(".tile-tip", state="hidden")
        assert tab.page.locator(".touch svg rect[fill-opacity]").count() == 0
    tab.page.evaluate("localStorage.setItem('tilescope-hovers', 5)")
    elapsed_ms, lit = tab.page.evaluate(
        """([clientX, clientY]) => {
          const start = performance.now(), surface = document.querySelector('#schedule-plot .nsewdrag');
          surface.dispatchEvent(new PointerEvent('pointermove', { clientX, clientY, bubbles: true }));
          return [performance.now() - start, document.querySelectorAll('.touch svg rect[fill-opacity]').length];
        }""",
        place(tab, 4.5, 4.5),
    )
    assert elapsed_ms < 50
    assert lit == 2
    assert explanation not in tab.text(".tile-tip")
    assert len(tab.requests) == before, "the server is not asked"
    tab.page.mouse.click(*place(tab, 2.5, 1.5))
    tab.page.wait_for_function("/tab=coalescing/.test(location.search) && /program=7(&|$)/.test(location.search)")


def test_edges_of_a_tile_and_of_a_group_are_dragged(tab: Tab) -> None:
    opened(tab)
    drag(tab, "GROUP_SIZE", 1.5, 5.1)
    tab.page.wait_for_function("document.body.dataset.address.includes('GROUP_SIZE=5')")
    expect(tab.page.get_by_label("GROUP_SIZE", exact=True)).to_have_value("5")
    tab.says("#schedule-plot", "GROUP_SIZE 5")
    tab.page.mouse.move(*place(tab, 2.5, 2.5))
    drag(tab, "BLOCK_N", 4.1, 2.5)
    tab.page.wait_for_function("document.body.dataset.address.includes('BLOCK_N=128')")
    tab.page.wait_for_function(
        "document.querySelector('#schedule-plot .live-plot').layout.meta.extents.join() === '9,5'"
    )
    tab.page.wait_for_timeout(300)
    tab.page.mouse.move(*place(tab, 1.5, 2.5))
    drag(tab, "BLOCK_M", 1.5, 2.45)
    tab.page.wait_for_function("document.body.dataset.address.includes('BLOCK_M=32')")


def test_keys_move_over_tiles_resize_them_and_open_memory(tab: Tab) -> None:
    opened(tab)
    layer = tab.page.get_by_role("application")
    layer.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        layer.press(key)
    tab.says(".tile-tip", "Program 7 computes this tile, 64 × 64 elements of C.")
    layer.press("+")
    tab.page.wait_for_function("document.body.dataset.address.includes('GROUP_SIZE=4')")
    layer.press("Shift+ArrowRight")
    tab.page.wait_for_function("document.body.dataset.address.includes('BLOCK_N=128')")
    layer.press("Shift+ArrowUp")
    tab.page.wait_for_function("document.body.dataset.address.includes('BLOCK_M=32')")
    tab.page.wait_for_function("document.querySelector('.tile-tip').innerText.includes('32 × 128')")
    layer.press("Enter")
    tab.page.wait_for_function("/tab=coalescing/.test(location.search)")


def shelf(order: Schedule) -> tuple[float, float, float]:
    """Return the bytes fetched and evicted, and the blocks hit, by a launch whose waves run in lockstep."""
    read, launch = panels(order), order.launch
    assert read is not None
    pieces = np.stack([order.pieces[0], order.pieces[1] + len(read.row_bytes)])
    size = np.concatenate([read.row_bytes, read.column_bytes]).astype(float)
    tile = np.prod(order.kernel.output_tile(launch)) * DTYPE_BYTES[launch.problem.dtype]
    waves = order.step.max() + 1
    last, left, shelved = np.full(len(size), -1), np.zeros(len(size)), np.zeros(waves)
    tiles = np.append(0, np.cumsum(np.bincount(order.step)))
    fetched = evicted = hits = 0.0
    for wave in range(waves):
        piece, users = np.unique(pieces[:, order.step == wave], return_counts=True)
        copied, before = (2 - 0.5**users) * size[piece], last[piece]
        share = np.ones(len(piece))
        for previous in np.unique(before[before >= 0]):
            newer = shelved[previous + 1 : wave].sum() + (shelved[previous] + copied[before <= previous].sum()) / 2
            count = (tiles[previous + 1] - tiles[previous] + tiles[wave + 1] - tiles[wave]) / 2
            count += tiles[wave] - tiles[previous + 1]
            touched = (newer + 1.5 * tile * count) / launch.gpu.l2_bytes
            share[before == previous] = evicted_share(touched, CONSTANTS.ways)
        fetched += (share * size[piece]).sum()
        evicted += (share * size[piece])[before >= 0].sum()
        hits += ((users - share) * order.k_blocks).sum()
        again = before >= 0
        np.subtract.at(shelved, before[again], left[piece[again]])
        last[piece], left[piece] = wave, copied
        shelved[wave] = copied.sum()
    return fetched, evicted, hits


LAUNCHES = [
    (576, 576, 288, 3),
    (8192, 8192, 8192, 1),
    (8192, 8192, 8192, 8),
    (16384, 8192, 4096, 1),
    (16000, 16000, 1000, 2),
]


def planned(m: int, n: int, k: int, size: int) -> Schedule:
    kernel = discover()["matmul.grouped"]
    config = kernel.config(BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP_SIZE=size, num_warps=8)
    return schedule(kernel, Launch(kernel.family.problem(M=m, N=n, K=k), config, GPUS["H200"]), 1)


def test_the_corner_shows_what_the_model_of_the_l2_predicts_for_both_orders(tab: Tab) -> None:
    """Within 15 % of the model that follows each tile; exactly if everything fits."""
    opened(tab)
    for number, (m, n, k, size) in enumerate(LAUNCHES):
        tab.follow(
            f"?kernel=matmul.grouped&gpu=H200&M={m}&N={n}&K={k}&BLOCK_M=128&BLOCK_N=256&BLOCK_K=64&GROUP_SIZE={size}"
            f"&num_warps=8&programs_per_sm=1&step={2**21 - number}"
        )
        own = planned(m, n, k, size)
        predicted = [shelf(own), shelf(row_major(own))]
        fetched, evicted, _ = predicted[0]
        is_small = evicted < 0.005 * fetched
        corners = tab.page.locator("#schedule-plot .corner")
        for half, totals in enumerate(predicted):
            read = f"[...document.querySelectorAll('#schedule-plot .corner')][{half}]?.dataset.hits"
            tab.page.wait_for_function(f"Math.abs({read} - {totals[2]}) <= 1e-3 * {totals[2]} + 1")
            values = [float(corners.nth(half).get_attribute(f"data-{name}") or -1) for name in ("fetched", "evicted")]
            assert values == pytest.approx(totals[:2], rel=1e-3, abs=1), (m, n, k, size)
        words = "it all fits in the" if is_small else "evicted, fetched again"
        tab.says("#schedule-plot .corner >> nth=0", words, folded=True)
        assert fetched == pytest.approx(reuse(own, 0.0).lockstep_bytes, rel=0.15)
    assert by_group_size(own, 0.0, (1,))[1].lockstep_bytes == pytest.approx(predicted[1][0], rel=0.15)
