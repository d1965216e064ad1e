// The tiles of a run over the map (see `tile_marks`): they fill in launch order. Right tiles then turn green, so that their
// numbers stay legible, and wrong ones are marked.
import { isStill, make } from "../../web/assets/dom.js";

const FILL_MS = 900, TURN_MS = 300;

export class Marks {
  constructor({ wrong, words, count }) {
    Object.assign(this, { wrong, words, canvas: make("canvas", { id: "run-tiles", role: "img", "aria-label": words, "data-wrong": count }) });
    this.begun = performance.now();
  }

  // The cells of the output's map, with the turn in which each is complete: with its last slice.
  cells({ orders: [order], meta: { grid: { down: { stride } } } }, isTurned) {
    const cells = new Map();
    for (let entry = 0; entry < order.total; entry++) {
      const { m, n } = order.at(entry), [row, column] = (isTurned ? [n, m] : [m, n]).map((tile) => Math.floor(tile / stride));
      cells.set(`${row} ${column}`, { row, column, turn: entry / order.total, isWrong: this.wrong[row]?.[column] === "1" });
    }
    return [...cells.values()];
  }

  // Take the picture that is about to be drawn, and say below the map what the marks say.
  lay({ data, layout }, picture) {
    const { panels, tensors, extents, grid: { down: { stride } } } = picture.meta, map = panels ? 0 : tensors.length - 1;
    const isTurned = picture.isTransposed(map), ends = isTurned ? extents.toReversed() : extents, cells = this.cells(picture, isTurned);
    for (const cell of cells) cell.label = cell.isWrong ? "✗" : data[map].text?.at(cell.row - ends[0]).at(cell.column - ends[1]);
    this.step ??= picture.step; // another step shows its own colours
    Object.assign(this, { map, stride, ends, drawn: this.step === picture.step ? cells : cells.filter(({ isWrong }) => isWrong) });
    layout.annotations = layout.annotations.map((note) => (note.name === "output" ? { ...note, text: `${note.text.split(":")[0]}: ${this.words}` } : note));
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
    const edges = (axis, cell, end) => [cell * stride, Math.min((cell + 1) * stride, end)].map((tile) => axis._offset + axis.d2p(tile));
    for (const { row, column, turn, isWrong, label } of this.drawn) {
      if (turn * FILL_MS > elapsed) continue;
      const [left, right] = edges(x, column, ends[1]), [top, bottom] = edges(y, row, ends[0]);
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
