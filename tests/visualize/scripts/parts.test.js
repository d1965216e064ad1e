// Parts of scripts that need no page.
import assert from "node:assert/strict";
import test from "node:test";
import { links, laneMarks } from "../../../visualize/views/memory/script.js";
import { describeChanges } from "../../../visualize/views/result/script.js";
import { fileName } from "../../../visualize/web/assets/files.js";
import { counted } from "../../../visualize/web/assets/numbers.js";
import { cases, open } from "./cases.js";

test("numbers and names of files", () => {
  assert.equal(counted(1, "block"), "1 block");
  assert.equal(counted(2048, "block"), "2,048 blocks");
  assert.equal(fileName("matmul.grouped: <b>8 × 8</b>, tiles"), "matmul.grouped_8_8_tiles");
});

test("a result of other settings names the first that differs", () => {
  const describe = (then, now) => describeChanges(then, new URLSearchParams(now));
  assert.equal(describe("kernel=a&M=1", "kernel=b&M=1"), "a");
  assert.equal(describe("kernel=a&M=1&N=2", "kernel=a&M=3&N=4"), "M 1, …");
  assert.equal(describe("kernel=a&M=1", "kernel=a&M=1&gpu=H100"), "default GPU");
  assert.equal(describe("kernel=a&M=1", "kernel=a&M=1"), "");
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
