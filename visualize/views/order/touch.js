// Over the map: the corner above A, with loads, and the tiles that a reader points at or drags.
import { Picture } from "./launch.js";
import { address, emit, listen, make, setBox } from "../../web/assets/dom.js";
import { written } from "../../web/assets/numbers.js";

// The corner above A of one order: its loads, and a bar that all orders scale alike.
class Corner {
  constructor(order) {
    Object.assign(this, { order, node: make("div", { class: "corner" }) });
    this.show(0, 1);
  }

  show(step, scale) {
    const { blocks, what, detail } = this.order.load(step);
    this.node.innerHTML = `<p class="count quiet"><b>${written(blocks)}</b> <span class="what" title="${what}${detail}">${what}</span>
      <span class="brief">blocks</span></p><div class="bar"><i style="width: ${100 * Math.min(1, blocks / scale)}%"></i></div>`;
    return { blocks, what: what + detail };
  }
}

// The layer over a plot. Tiles of the pinned picture can be pointed at, but not dragged.
export class Overlay {
  constructor(plot, isOwn) {
    Object.assign(this, { plot, isOwn, sizes: new Map(), isAwaited: false }); // sizes to set, by the knob's name
    this.layer = make("div", { class: "touch" });
    this.svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.svg.setAttribute("aria-hidden", "true");
    this.tip = make("p", { class: "tile-tip", hidden: "", role: "status" });
    this.layer.append(this.svg, this.tip);
    document.addEventListener("pointermove", (event) => this.move(event));
    listen("drawn", ({ target }) => { if (target === plot) this.place(); });
    if (isOwn) this.listen();
    plot.before(this.layer);
  }

  listen() {
    const { layer, plot } = this;
    layer.tabIndex = 0;
    layer.setAttribute("role", "application");
    layer.addEventListener("keydown", (event) => this.press(event));
    layer.addEventListener("focus", () => { if (layer.matches(":focus-visible")) this.choose(this.point ?? { map: 0, m: 0, n: 0 }); });
    layer.addEventListener("blur", () => this.choose(null));
    plot.addEventListener("pointerdown", (event) => {
      this.pressed = event.target.closest(".modebar") ? null : { x: event.clientX, y: event.clientY, at: this.pointAt(event) };
    });
    this.svg.addEventListener("pointerdown", (event) => {
      const { name } = event.target.dataset;
      if (!name) return;
      event.preventDefault();
      const { value } = this.picture.handles[name], { width, height } = this.box(0, 0, 0, 1, 1);
      this.drag = { name, value, start: value, from: event, at: event, width, height };
    });
    document.addEventListener("pointerup", (event) => this.release(event));
    listen("awaited", ({ detail }) => {
      this.isAwaited = detail;
      this.enterSizes();
    });
  }

  take(meta) {
    if (this.picture?.meta === meta) return;
    this.picture = new Picture(this.plot, meta);
    const { handles, orders } = this.picture, { panels, extents: [rows, columns] } = meta, { point, layer } = this;
    this.corners?.forEach(({ node }) => node.remove());
    this.corners = panels ? orders.map((order) => new Corner(order)) : [];
    layer.prepend(...this.corners.map(({ node }) => node));
    const remains = point && point.m < rows && point.n < columns && (!panels || orders[point.map]);
    this.choose(remains ? point : null);
    const keys = ["arrow keys move"];
    if (handles.BLOCK_M) keys.push("Shift and arrows change BLOCK_M and BLOCK_N");
    if (handles.GROUP_SIZE) keys.push("plus and minus change GROUP_SIZE");
    if (this.isOwn) layer.setAttribute("aria-label", `Tiles of the map: ${keys.join(", ")}`);
  }

  // Lay a step over the picture that is about to be drawn.
  lay(detail, step) {
    this.picture.lay(detail, step);
    this.marks?.lay(detail, this.picture);
  }

  axes(map) {
    const full = this.plot._fullLayout, number = map ? map + 1 : "", x = full?.[`xaxis${number}`], y = full?.[`yaxis${number}`];
    return x?._length ? { x, y } : null;
  }

  // A rectangle of a map, in tiles, as pixels.
  box(map, left, top, right, bottom) {
    const { x, y } = this.axes(map), edges = (axis, from, to) => [from, to].map((value) => axis._offset + axis.d2p(value));
    const [[l, r], [t, b]] = [edges(x, left, right), edges(y, top, bottom)];
    return { x: l, y: t, width: Math.max(3, r - l), height: Math.max(3, b - t) };
  }

  // The pointer's place in a map, in tiles: [across, down].
  inTiles({ clientX, clientY }, map) {
    const { x, y } = this.axes(map), frame = this.plot.getBoundingClientRect();
    return [x.p2d(clientX - frame.left - x._offset), y.p2d(clientY - frame.top - y._offset)];
  }

  place() {
    const { plot, layer } = this, { down, across } = this.picture.meta.grid;
    setBox(layer, { left: plot.offsetLeft, top: plot.offsetTop, width: plot.clientWidth, height: plot.clientHeight });
    layer.hidden = !this.axes(0);
    if (layer.hidden) return;
    this.corners.forEach(({ node }, map) => {
      const { x, y, width, height } = this.box(map, across.along_k[0], down.along_k[0], across.along_k[1], down.along_k[1]);
      // Zoomed in, the map has no corner.
      node.hidden = Math.abs(x - this.axes(map).x._offset) > 2 || y < -2;
      setBox(node, { left: x, top: y, width, height });
      node.classList.remove("low");
      node.classList.toggle("low", node.firstChild.offsetHeight > node.clientHeight);
    });
    this.marks?.draw(this);
    this.draw();
  }

  // The tile (map, m, n) under the pointer, or the block along K of A (map, m, k) or B (map, n, k); null outside.
  pointAt(event) {
    const { meta, orders } = this.picture, { down, across, slice_of: slices } = meta.grid, [rows, columns] = meta.extents;
    const blockAt = (at, [from, to]) => Math.floor((at - from) / (to - from) * slices.length);
    for (let map = 0; map < (meta.panels ? orders.length : meta.tensors.length); map++) {
      if (!this.axes(map)) return null;
      const [x, y] = this.inTiles(event, map), [n, m] = (this.picture.isTransposed(map) ? [y, x] : [x, y]).map(Math.floor);
      const isRow = m >= 0 && m < rows, isColumn = n >= 0 && n < columns;
      if (isRow && isColumn) return { map, m, n };
      const [k, isBlock] = isRow ? [blockAt(x, across.along_k), true] : [blockAt(y, down.along_k), isColumn];
      if (isBlock && k >= 0 && k < slices.length) return isRow ? { map, m, k } : { map, n, k };
    }
    return null;
  }

  move(event) {
    if (this.drag) this.pull(event);
    const isInside = this.plot.contains(event.target), isKept = !isInside && this.layer.contains(document.activeElement);
    if (this.drag || isKept || this.svg.contains(event.target)) return;
    const point = isInside ? this.pointAt(event) : null;
    if (!isSame(point, this.point)) this.choose(point);
  }

  release(event) {
    const { pressed, drag } = this;
    this.pressed = this.drag = null;
    if (drag) this.choose(this.point);
    // A tap arrives without a hover before it.
    const isTap = event.pointerType === "touch" && pressed && Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y) < 4;
    if (!drag && isTap) this.choose(pressed.at);
  }

  press(event) {
    const { extents: [rows, columns] } = this.picture.meta, { m = 0, n = 0 } = this.point ?? {};
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (down || right) {
      if (event.shiftKey) this.step(down ? "BLOCK_M" : "BLOCK_N", down || right);
      else this.choose({ map: 0, m: Math.min(rows - 1, Math.max(0, m + down)), n: Math.min(columns - 1, Math.max(0, n + right)) });
    } else if ("+=-−".includes(event.key)) this.step("GROUP_SIZE", "+=".includes(event.key) ? 1 : -1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  step(name, by) {
    const { value, values = [] } = this.picture.handles[name] ?? {}, next = values[values.indexOf(this.sizes.get(name) ?? value) + by];
    if (next) this.enterSizes([name, next]);
  }

  // Follow an address with the new sizes, so that the forms show them, too. Later sizes wait for the reply.
  enterSizes(...sizes) {
    for (const [name, value] of sizes) this.sizes.set(name, value);
    if (this.isAwaited || !this.sizes.size) return;
    const query = address(), tour = new URLSearchParams(location.search);
    for (const name of ["tour", "stop"]) if (tour.has(name)) query.set(name, tour.get(name));
    for (const [name, value] of this.sizes) query.set(name, value);
    this.sizes.clear();
    emit("follow", query.toString());
  }

  // A dragged edge: the allowed size that is nearest to the pointer, in tiles of the picture in which the drag began. A
  // later picture has its sizes before its axes.
  pull(event) {
    const { drag } = this, { values } = this.picture.handles[drag.name], { from, start, width, height } = drag;
    const across = 1 + (event.clientX - from.clientX) / width, down = 1 + (event.clientY - from.clientY) / height;
    const sizes = { BLOCK_M: down * start, BLOCK_N: across * start, GROUP_SIZE: this.inTiles(event, 0)[1] };
    const distance = (size) => Math.abs(Math.log2(Math.max(sizes[drag.name], 0.5) / size));
    const next = [...values].reduce((best, size) => (distance(size) < distance(best) ? size : best));
    if (next !== drag.value) this.enterSizes([drag.name, next]);
    Object.assign(drag, { value: next, at: event });
    this.choose(this.point);
  }

  choose(point) {
    this.point = point;
    const { drag } = this, lines = drag ? [`${drag.name} ${drag.value}`] : point ? this.picture.words(point) : [];
    this.tip.hidden = !lines.length;
    this.tip.innerText = lines.join("\n");
    this.draw();
  }

  draw() {
    if (!this.axes(0)) return;
    const { point, picture: { handles } } = this, parts = [];
    if (!this.tip.hidden) this.placeTip();
    if (point && !this.drag && !("k" in point)) this.drawTile(parts);
    if (this.isOwn && handles.GROUP_SIZE) {
      const { extents: [rows, columns] } = this.picture.meta, size = Math.min(handles.GROUP_SIZE.value, rows);
      const { x, y, width } = this.box(0, 0, size, Math.min(size, columns), size), cell = this.box(0, 0, 0, 1, 1).height;
      // Between small cells, the handle would look like a stray dash, so it is visible only under the pointer.
      const isSmall = cell < 12, height = isSmall ? 4 : Math.min(8, cell / 4), place = { x: x + width / 2 - 14, y: y - height / 2, width: 28, height };
      parts.push(rect(place, { rx: 4, class: `handle down${isSmall ? "" : " group"}`, "data-name": "GROUP_SIZE" }));
    }
    this.svg.innerHTML = parts.join("");
  }

  drawTile(parts) {
    const { point, picture: { handles, meta: { panels, tensors } } } = this, { map, m, n } = point;
    if (panels) this.drawPanels(parts);
    for (const each of panels ? [map] : tensors.keys()) {
      const [y, x] = this.picture.isTransposed(each) ? [n, m] : [m, n], box = this.box(each, x, y, x + 1, y + 1);
      parts.push(rect(box, { fill: "none", stroke: "var(--new)", "stroke-width": 3 }));
      if (!this.isOwn || each || !panels || box.width < 10 || box.height < 10) continue;
      if (handles.BLOCK_N) parts.push(rect({ ...box, x: box.x + box.width - 4, width: 8 }, { class: "handle across", "data-name": "BLOCK_N" }));
      if (handles.BLOCK_M) parts.push(rect({ ...box, y: box.y + box.height - 4, height: 8 }, { class: "handle down", "data-name": "BLOCK_M" }));
    }
  }

  // The tile's row of A and column of B, with a line between blocks.
  drawPanels(parts) {
    const { map, m, n } = this.point, { down, across, blocks, slice_of: { length: depth } } = this.picture.meta.grid;
    const { entry, panels } = this.picture.reads(this.point);
    const boxes = [(from, to) => this.box(map, from, m, to, m + 1), (from, to) => this.box(map, n, from, n + 1, to)];
    for (const [side, boxOf] of boxes.entries()) {
      const [from, to] = [across, down][side].along_k;
      parts.push(rect(boxOf(from, to), { class: `panel ${panels[side].first === entry ? "new" : ""}` }));
      for (let k = 1; blocks && k < depth; k++) {
        const edge = from + (to - from) * k / depth;
        parts.push(rect({ ...boxOf(edge, edge), [side ? "height" : "width"]: 1 }, { fill: "white" }));
      }
    }
  }

  // Below the tile or, during a drag, below the pointer.
  placeTip() {
    const { drag, plot, layer } = this, { map, m = 0, n = 0 } = this.point ?? { map: 0 }, frame = plot.getBoundingClientRect();
    const [down, across] = this.picture.isTransposed(map) ? [n, m] : [m, n], tile = this.box(map, across, down, across + 1, down + 1);
    const [x, y] = drag ? [drag.at.clientX - frame.left, drag.at.clientY - frame.top] : [tile.x, tile.y + tile.height];
    setBox(this.tip, { left: Math.max(0, Math.min(x - 40, layer.clientWidth - 400)), top: y + 26 });
  }
}

const isSame = (point, other) => ["map", "m", "n", "k"].every((name) => point?.[name] === other?.[name]);

function rect(box, attributes) {
  return `<rect ${Object.entries({ ...box, ...attributes }).map(([name, value]) => `${name}="${value}"`).join(" ")}/>`;
}
