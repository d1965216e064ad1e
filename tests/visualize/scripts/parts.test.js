// Parts of scripts that need no page.
import assert from "node:assert/strict";
import test from "node:test";
import { links, laneMarks } from "../../../visualize/views/memory/script.js";
import { drawMoment } from "../../../visualize/views/order/replay.js";
import { describeChanges } from "../../../visualize/views/result/script.js";
import { fileName } from "../../../visualize/web/assets/files.js";
import { counted, inBytes } from "../../../visualize/web/assets/numbers.js";
import { cases, open } from "./cases.js";

test("numbers and names of files", () => {
  assert.equal(counted(1, "block"), "1 block");
  assert.equal(counted(2048, "block"), "2,048 blocks");
  assert.deepEqual([999, 33554432, 1500].map(inBytes), ["999 bytes", "33.6 MB", "1.5 kB"]);
  assert.equal(fileName("matmul.grouped: <b>8 × 8</b>, tiles"), "matmul.grouped_8_8_tiles");
});

test("a result of other settings names the first that differs", () => {
  const describe = (then, now) => describeChanges(then, new URLSearchParams(now));
  assert.equal(describe("kernel=a&M=1", "kernel=b&M=1"), "a");
  assert.equal(describe("kernel=a&M=1&N=2", "kernel=a&M=3&N=4"), "M 1, …");
  assert.equal(describe("kernel=a&M=1", "kernel=a&M=1&gpu=H100"), "default GPU");
  assert.equal(describe("kernel=a&M=1", "kernel=a&M=1"), "");
});

test("a recorded launch at any time has the tiles that run and those that are done", async () => {
  const { figures, moments } = cases.timeline;
  for (const { now, maps } of moments) {
    for (const [name, { cells, words }] of Object.entries(maps)) {
      const { data, layout } = await open(figures[name]);
      const drawn = drawMoment(layout.meta.moments, now, data[0], layout);
      assert.deepEqual(drawn.data[0].z.map((row) => [...row]), cells, `${name} at ${now} ns`);
      assert.equal(drawn.layout.annotations[0].text, words);
    }
  }
});

test("each lane's line ends at the first byte that it accesses", async () => {
  const { data: [, , lanes], layout: { meta: { requests } } } = await open(cases.requests);
  const place = requests.titles.length - 1; // whose last lane is inactive
  const bytes = requests.byte[place];
  const { x, y } = links(requests, bytes, requests.end[place], lanes);
  const { hovertext } = laneMarks(requests, bytes, {});
  assert.equal(bytes.at(-1), -1);
  hovertext.forEach((text, lane) => {
    const last = 22 * lane + 20; // a line has 21 points
    if (bytes[lane] < 0) {
      assert.equal(text, `lane ${lane}`);
      assert.ok(Number.isNaN(y[last]));
      return;
    }
    const byte = Number(text.match(/bytes ([\d,]+) to/)[1].replaceAll(",", ""));
    const row = Math.floor(y[last] * requests.state[place].length);
    assert.ok(Math.abs(x[last] - byte % 128 / 128) < 1e-6);
    assert.equal(requests.line[place][row] - 1, Math.floor(byte / 128));
  });
});
