// The tiles of a run over the map (see `tile_marks`): they fill in launch order. Right tiles then turn green, so that their
// numbers stay legible, and wrong ones are marked.
import { isStill, make } from "../../web/assets/dom.js";

const FILL_MS = 900, TURN_MS = 300;

export class Marks {
  constructor({ wrong, words, count }) {
    const canvas = make("canvas", { id: "run-tiles", role: "img", "aria-label": words, "data-wrong": count });
    Object.assign(this, { wrong, words, canvas, begun: performance.now() });
  }

  // Take the picture that is about to be drawn, and say below the map what the marks say.
  lay({ data, layout }, picture) {
    const { panels, tensors, extents, grid: { down: { stride } } } = picture.meta, map = panels ? 0 : tensors.length - 1;
    const isTurned = picture.isTransposed(map), ends = isTurned ? extents.toReversed() : extents, [order] = picture.orders;
    // The last slice of a cell completes it, so it overwrites the turn.
    const cells = new Map();
    for (let entry = 0; entry < order.total; entry++) {
      const { m, n } = order.at(entry), [row, column] = (isTurned ? [n, m] : [m, n]).map((tile) => Math.floor(tile / stride));
      const isWrong = this.wrong[row]?.[column] === "1", label = isWrong ? "✗" : data[map].text?.at(row - ends[0]).at(column - ends[1]);
      cells.set(`${row} ${column}`, { row, column, turn: entry / order.total, isWrong, label });
    }
    // At another step, the cells show that step's colours.
    this.step ??= picture.step;
    const drawn = [...cells.values()].filter((cell) => cell.isWrong || this.step === picture.step);
    Object.assign(this, { map, stride, ends, drawn });
    layout.annotations = layout.annotations.map((note) => (note.name === "output" ? { ...note, text: `${note.text.split(":")[0]}: ${this.words}` } : note));
  }

  draw(overlay) {
    const { canvas, map, stride, ends } = this, axes = overlay.axes(map);
    if (!canvas.isConnected) overlay.svg.before(canvas);
    const ratio = devicePixelRatio, pen = canvas.getContext("2d"), style = getComputedStyle(canvas);
    const [filled, good, bad] = ["button", "right-tile", "wrong-tile"].map((name) => style.getPropertyValue(`--${name}`));
    const elapsed = isStill() ? Infinity : performance.now() - this.begun;
    const turned = Math.min(1, Math.max(0, (elapsed - FILL_MS) / TURN_MS));
    Object.assign(canvas, { width: overlay.plot.clientWidth * ratio, height: overlay.plot.clientHeight * ratio });
    pen.scale(ratio, ratio);
    pen.rect(axes.x._offset, axes.y._offset, axes.x._length, axes.y._length);
    pen.clip();
    Object.assign(pen, { textAlign: "center", textBaseline: "middle" });
    const end = (cell, side) => Math.min((cell + 1) * stride, ends[side]);
    for (const { row, column, turn, isWrong, label } of this.drawn) {
      if (turn * FILL_MS > elapsed) continue;
      const { x, y, width, height } = overlay.box(map, column * stride, row * stride, end(column, 1), end(row, 0), 0), gap = width > 6 ? 1 : 0;
      for (const [color, alpha] of [[filled, turned < 1], isWrong ? [bad, turned] : [good, 0.85 * turned]]) {
        Object.assign(pen, { fillStyle: color, globalAlpha: Number(alpha) });
        pen.fillRect(x + gap / 2, y + gap / 2, width - gap, height - gap);
      }
      if (!label || turned < 1 || width < 14) continue;
      Object.assign(pen, { fillStyle: "#111827", font: `700 ${Math.min(18, 0.6 * height)}px sans-serif` });
      pen.fillText(label, x + width / 2, y + height / 2);
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
