// The tiles of a run over the map (see `tile_marks`): they fill in launch order. Right tiles then turn green, so that their
// numbers stay legible, and wrong ones are marked.
import { isStill, make } from "../../web/assets/dom.js";
import { counted, written } from "../../web/assets/numbers.js";

const FILL_MS = 900, TURN_MS = 300;

export class Marks {
  constructor({ wrong, tiles }) {
    Object.assign(this, { places: wrong, tiles, canvas: make("canvas", { id: "run-tiles", role: "img" }), begun: performance.now() });
  }

  // The cells of the output's map, in its order of rows and columns, with the turn in which each is complete.
  cells({ orders: [order], meta: { grid: { down: { stride } } } }, isTurned) {
    const cells = new Map();
    for (let entry = 0; entry < order.total; entry++) {
      const { m, n } = order.at(entry), first = (isTurned ? [n, m] : [m, n]).map((tile) => tile - tile % stride), key = first.join();
      const cell = cells.get(key) ?? { first, isWrong: this.isWrong(first, stride) };
      cells.set(key, Object.assign(cell, { turn: entry / order.total })); // a tile is complete with its last slice
    }
    return [...cells.values()];
  }

  isWrong(first, stride) {
    const { places, tiles } = this, last = [places.length - 1, places[0].length - 1];
    const [from, to] = [0, stride - 1].map((step) => first.map((tile, side) => Math.min(last[side], Math.floor((tile + step) / tiles[side]))));
    return places.slice(from[0], to[0] + 1).some((row) => row.slice(from[1], to[1] + 1).includes("1"));
  }

  // Take the picture that is about to be drawn, and say below the map what the marks say.
  lay({ data, layout }, picture) {
    const { meta: { panels, tensors, extents: [rows, columns], grid: { down: { stride } } } } = picture, map = panels ? 0 : tensors.length - 1;
    const isTurned = picture.isTransposed(map), ends = isTurned ? [columns, rows] : [rows, columns], cells = this.cells(picture, isTurned);
    const count = cells.filter(({ isWrong }) => isWrong).length, isCoarse = stride > 1 || this.tiles.some((tiles) => tiles > 1);
    const total = count && isCoarse ? counted(cells.length, "cell") : counted(rows * columns, "tile");
    const words = count ? `✗ ${written(count)} of ${total} wrong` : "✓ 0 wrong tiles";
    for (const cell of cells) cell.label = cell.isWrong ? "✗" : data[map].text?.at(cell.first[0] - ends[0]).at(cell.first[1] - ends[1]);
    this.step ??= picture.step; // another step shows its own colours
    Object.assign(this, { map, stride, ends, drawn: this.step === picture.step ? cells : cells.filter(({ isWrong }) => isWrong) });
    this.canvas.dataset.wrong = count;
    this.canvas.setAttribute("aria-label", words);
    layout.annotations = layout.annotations.map((note) => (note.name === "output" ? { ...note, text: `${note.text.split(":")[0]}: ${words}` } : note));
  }

  draw(overlay) {
    const { canvas, stride, ends, begun } = this, { x, y } = overlay.axes(this.map), { width, height } = overlay.plot._fullLayout;
    if (!canvas.isConnected) overlay.svg.before(canvas);
    const ratio = devicePixelRatio, pen = canvas.getContext("2d"), style = getComputedStyle(canvas);
    const [filled, good, bad] = ["button", "right-tile", "wrong-tile"].map((name) => style.getPropertyValue(`--${name}`));
    const elapsed = isStill() ? Infinity : performance.now() - begun;
    const turned = Math.min(1, Math.max(0, (elapsed - FILL_MS) / TURN_MS));
    Object.assign(canvas, { width: width * ratio, height: height * ratio });
    pen.scale(ratio, ratio);
    pen.rect(x._offset, y._offset, x._length, y._length);
    pen.clip();
    Object.assign(pen, { textAlign: "center", textBaseline: "middle" });
    for (const { first: [row, column], turn, isWrong, label } of this.drawn) {
      if (turn * FILL_MS > elapsed) continue;
      const [left, right] = [column, Math.min(column + stride, ends[1])].map((tile) => x._offset + x.d2p(tile));
      const [top, bottom] = [row, Math.min(row + stride, ends[0])].map((tile) => y._offset + y.d2p(tile));
      const gap = right - left > 6 ? 1 : 0;
      for (const [color, alpha] of [[filled, turned < 1], isWrong ? [bad, turned] : [good, 0.85 * turned]]) {
        Object.assign(pen, { fillStyle: color, globalAlpha: Number(alpha) });
        pen.fillRect(left + gap / 2, top + gap / 2, right - left - gap, bottom - top - gap);
      }
      if (!label || turned < 1 || right - left < 14) continue;
      Object.assign(pen, { fillStyle: "#111827", font: `700 ${Math.min(18, 0.6 * (bottom - top))}px sans-serif` });
      pen.fillText(label, (left + right) / 2, (top + bottom) / 2);
    }
    canvas.dataset.state = turned < 1 ? "filling" : "checked";
    cancelAnimationFrame(this.frame);
    if (turned < 1) this.frame = requestAnimationFrame(() => this.draw(overlay));
  }

  remove() {
    cancelAnimationFrame(this.frame);
    this.canvas.remove();
  }
}
