// The card of a run (see view.py), and the run's tiles over the picture of the program order. Results are greyed as soon as
// the controls differ from their experiment.
const FILL_MS = 900, TURN_MS = 300; // C's tiles fill in launch order, then turn into the error map
const COLORS = { filled: "#3b4fd1", right: ["#a7dcc8", "#1d6b54"], wrong: ["#e8590c", "#fb923c"] }; // light, dark
let run = null; // the run whose tiles are marked: its marks, the page's settings, and its start

const picture = () => document.querySelector("#schedule-plot .live-plot");
const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
const address = () => new URLSearchParams(document.body.dataset.address);

// The settings, except the open view and the player's step, which change no tile.
function settings() {
  const query = address();
  ["tab", "step"].forEach((name) => query.delete(name));
  return query.toString();
}

// Names the settings of a result that differ from the current ones; "" if none does.
function describeChanges(experiment, current) {
  const then = new URLSearchParams(experiment);
  if (then.get("kernel") !== current.get("kernel")) return then.get("kernel");
  const names = ["gpu", ...[...then.keys()].filter((name) => name !== "gpu")];
  const changed = names.filter((name) => (current.get(name) ?? "") !== (then.get(name) ?? ""));
  return changed.map((name) => `${name} ${then.get(name) || "default"}`).join(", ");
}

function markStale() {
  const current = address(), isRefused = document.querySelector("#experiment .field.wrong") !== null;
  if (!current.size) return;
  const plots = document.querySelectorAll("#result-tab .slot[data-kind=plot]");
  for (const node of document.querySelectorAll("[data-experiment]:not(.pinned *)")) {
    const changes = describeChanges(node.dataset.experiment, current), isStale = isRefused || changes !== "";
    node.dataset.stale = changes && `Result for ${changes}. Run to update.`;
    for (const part of node.closest("#result") ? [node, ...plots] : [node]) part.classList.toggle("stale", isStale);
  }
}

// The cells of C in a picture (`layout.meta`, see map_figure.py): in figure order, with the turn in which each is computed.
function cellsOf(meta, marks) {
  const { extents: [rows, columns], grid, slices, panels, transposed, orders: [order] } = meta;
  const isTurned = !panels && transposed.at(-1), across = isTurned ? grid.down.cells : grid.across.cells;
  const cells = new Map(), plane = rows * columns, total = plane * slices, { stride } = grid.down;
  const last = [marks.wrong.length - 1, marks.wrong[0].length - 1];
  const isWrong = (first) => {
    const [from, to] = [0, stride - 1].map((step) => first.map((tile, side) => Math.min(last[side], Math.floor((tile + step) / marks.tiles[side]))));
    return marks.wrong.slice(from[0], to[0] + 1).some((row) => row.slice(from[1], to[1] + 1).includes("1"));
  };
  for (let entry = 0; entry < total; entry++) {
    const tile = (order.places ? order.places[entry] : entry) % plane, m = Math.floor(tile / columns), n = tile % columns;
    const [row, column] = (isTurned ? [n, m] : [m, n]).map((index) => Math.floor(index / stride));
    const key = row * across + column, first = [row * stride, column * stride];
    const cell = cells.get(key) ?? { first, wrong: isWrong(first) };
    cells.set(key, Object.assign(cell, { turn: entry / total })); // a tile is complete with its last slice
  }
  const ends = isTurned ? [columns, rows] : [rows, columns];
  return { ends, stride, axis: panels ? "" : String(transposed.length).replace("1", ""), cells: [...cells.values()] };
}

// Draws the marks at their place and time over the picture. Returns whether they still move.
function draw() {
  const plot = picture(), layout = plot?._fullLayout, meta = plot?.layout?.meta;
  if (!run || !meta?.orders || !plot.checkVisibility()) return false;
  if (run.meta !== meta) Object.assign(run, { meta, map: cellsOf(meta, run.marks) });
  const { ends, stride, axis, cells } = run.map, x = layout[`xaxis${axis}`], y = layout[`yaxis${axis}`];
  const canvas = document.getElementById("run-tiles") ?? Object.assign(document.createElement("canvas"), { id: "run-tiles", role: "img" });
  if (!canvas.isConnected) plot.after(canvas);
  const ratio = devicePixelRatio, { width, height } = layout, isDark = Number(document.body.classList.contains("dark"));
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  canvas.style.cssText = `left: ${plot.offsetLeft}px; top: ${plot.offsetTop}px; width: ${width}px; height: ${height}px`;
  const elapsed = isStill() ? Infinity : performance.now() - run.begun;
  const turned = Math.min(1, Math.max(0, (elapsed - FILL_MS) / TURN_MS)), pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.rect(x._offset, y._offset, x._length, y._length);
  pen.clip();
  Object.assign(pen, { textAlign: "center", textBaseline: "middle" });
  for (const { first: [row, column], turn, wrong } of cells) {
    if (turn * FILL_MS > elapsed) continue;
    const [left, right] = [column, Math.min(column + stride, ends[1])].map((tile) => x._offset + x.l2p(tile));
    const [top, bottom] = [row, Math.min(row + stride, ends[0])].map((tile) => y._offset + y.l2p(tile));
    const gap = right - left > 6 ? 1 : 0;
    for (const [color, alpha] of [[COLORS.filled, turned < 1 ? 1 : 0], [COLORS[wrong ? "wrong" : "right"][isDark], turned]]) {
      Object.assign(pen, { fillStyle: color, globalAlpha: alpha });
      pen.fillRect(left + gap / 2, top + gap / 2, right - left - gap, bottom - top - gap);
    }
    if (!wrong || right - left < 14) continue;
    Object.assign(pen, { fillStyle: "#111827", font: `700 ${Math.min(18, 0.6 * (bottom - top))}px sans-serif` });
    pen.fillText("✗", (left + right) / 2, (top + bottom) / 2);
  }
  const count = cells.filter(({ wrong }) => wrong).length;
  Object.assign(canvas.dataset, { wrong: count, state: turned < 1 ? "filling" : "checked" });
  canvas.setAttribute("aria-label", count ? `Wrong tiles: ${count} of ${cells.length} cells` : "Every tile is correct");
  return turned < 1;
}

function animate() {
  if (draw()) requestAnimationFrame(animate);
}

function clear() {
  run = null;
  element.classList.remove("toast");
  document.getElementById("run-tiles")?.remove();
}

function show() {
  const inReadersTime = { dateStyle: "medium", timeStyle: "short", hourCycle: "h23" };
  for (const time of element.querySelectorAll("time")) {
    time.textContent = new Date(time.dateTime).toLocaleString("en", inReadersTime);
  }
  queueMicrotask(markStale); // after the other slots of this update
  const tiles = element.querySelector("[data-tiles]"), failure = element.querySelector(".failure");
  clear();
  if (!tiles && !failure) return;
  const { top, bottom } = element.getBoundingClientRect();
  element.classList.toggle("toast", Boolean(failure) || innerWidth <= 640 || top < 0 || bottom > innerHeight);
  element.animate({ transform: ["translateY(-.4rem)", "none"] }, { duration: isStill() ? 0 : 250, easing: "ease-out" });
  const experiment = element.querySelector("[data-experiment]")?.dataset.experiment;
  if (!tiles || describeChanges(experiment, address())) return;
  run = { marks: JSON.parse(tiles.dataset.tiles), settings: settings(), begun: performance.now() };
  animate();
}

element.addEventListener("click", () => element.classList.remove("toast"));
document.addEventListener("tilescope:paint", ({ target }) => {
  // Plotly draws the picture after this event: immediately or, while the player moves, once it rests.
  if (run && target === picture()) for (const wait of [20, 300]) setTimeout(draw, wait);
});
// The marks last until the settings change or somebody uses the player, which also plays on its own.
for (const name of ["pointerdown", "keydown"]) document.addEventListener(name, ({ target }) => target.closest?.("#player") && clear());
for (const name of ["tilescope:play", "tilescope:step"]) document.addEventListener(name, clear);
document.addEventListener("tilescope:address", () => {
  markStale();
  if (run && run.settings !== settings()) clear();
});
document.addEventListener("tilescope:problems", markStale);
addEventListener("resize", () => setTimeout(draw, 300));
watch("value", show);
