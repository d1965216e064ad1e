// A launch at each step, and the tips of its tiles: as the models on the server have them (see ../test_scripts.py).
import assert from "node:assert/strict";
import test from "node:test";
import { Picture } from "../../../visualize/views/order/launch.js";
import { cases, open } from "./cases.js";

for (const [name, { figure, steps }] of Object.entries(cases.launches)) {
  test(`${name}: each step has the model's cells and loads in both orders`, async () => {
    const { data, layout } = await open(figure);
    const picture = new Picture(layout.meta);
    for (const { step, halves } of steps) {
      picture.lay({ data, layout: { ...layout, width: 900, height: 600 } }, step);
      halves.forEach(({ cells, blocks, what }, half) => {
        const order = picture.orders[half];
        const grid = order.frame(step).map((row) => row.map((value) => (Number.isNaN(value) ? null : value)));
        assert.deepEqual(grid, cells, `step ${step}, half ${half}`);
        assert.equal(order.load(step).blocks, blocks);
        assert.equal(order.load(step).what, what);
      });
    }
  });
}

test("outlines have few corners, in black on white", async () => {
  const { data, layout } = await open(cases.launches.article.figure);
  const detail = { data, layout: { ...layout, width: 900, height: 600 } };
  new Picture(layout.meta).lay(detail, 1);
  const sizes = detail.layout.shapes.map(({ path }) => {
    const points = path.slice(1).split(/[ML]/).map((point) => point.split(",").map(Number));
    return [0, 1].map((side) => Math.max(...points.map((point) => point[side])) - Math.min(...points.map((point) => point[side])));
  });
  assert.deepEqual(sizes, [[3, 3], [3, 3], [9, 1], [9, 1]]);
});

test("a tile's tip names its program and the readers of its blocks; a block's tip names its first reader", async () => {
  const { layout } = await open(cases.launches.article.figure);
  const picture = new Picture(layout.meta);
  for (const [point, ...lines] of [
    [{ map: 0, m: 1, n: 2 }, "pid 7 computes this tile, 64 × 64 elements of C.", "pid_m 1, pid_n 2: wave 1",
      "Row 1 of A, 9 blocks: already loaded by pid 1.", "Column 2 of B, 9 blocks: already loaded by pid 6."],
    [{ map: 1, m: 1, n: 2 }, "pid 11 computes this tile, 64 × 64 elements of C.", "pid_m 1, pid_n 2: wave 1",
      "Row 1 of A, 9 blocks: already loaded by pid 9.", "Column 2 of B, 9 blocks: already loaded by pid 2."],
    [{ map: 0, m: 3, k: 2 }, "A: pid_m 3, block 2 of K", "First loaded by pid 27, in wave 1."],
    [{ map: 1, n: 8, k: 0 }, "B: pid_n 8, block 0 of K", "First loaded by pid 8, in wave 1."],
  ]) assert.deepEqual(picture.words(point), lines);
});
