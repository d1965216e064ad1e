// Over the map: the corner above A, with loads, and the tiles that a reader points at or drags.
import { Picture } from "./launch.js";
import { address, emit, listen, make, setBox } from "../../web/assets/dom.js";
import { written } from "../../web/assets/numbers.js";


// The layer over a plot. Tiles of the pinned picture can be pointed at, but not dragged.
export class Overlay {
  layer = make("div", { class: "touch" });
  // One corner per order.
  corners = [];
  // knob → size to set
  sizes = new Map();

  constructor(plot, isOwn) {
    Object.assign(this, { plot, isOwn });
    this.layer.innerHTML = '<svg aria-hidden="true"></svg><p class="tile-tip" role="status" hidden></p>';
    [this.svg, this.tip] = this.layer.children;
    document.addEventListener("pointermove", (event) => this.move(event));
    plot.addEventListener("tilescope:drawn", () => this.place());
    plot.before(this.layer);
    if (isOwn) this.listen(this.layer);
  }

  listen(layer) {
    layer.tabIndex = 0;
    layer.role = "application";
    layer.addEventListener("keydown", (event) => this.press(event));
    layer.addEventListener("focus", () => { if (layer.matches(":focus-visible")) this.choose(this.point ?? { map: 0, m: 0, n: 0 }); });
    layer.addEventListener("blur", () => this.choose(null));
    this.plot.addEventListener("pointerdown", (event) => {
      this.pressed = event.target.closest(".modebar") ? null : { from: event, at: this.pointAt(event) };
    });
    this.svg.addEventListener("pointerdown", (event) => {
      const name = event.target.dataset.name;
      if (!name) return;
      event.preventDefault();
      const value = this.picture.handles[name].value;
      this.drag = { name, value, start: value, from: event, at: event, tile: this.box(0, 0, 0, 1, 1) };
    });
    document.addEventListener("pointerup", (event) => this.release(event));
    listen("awaited", (event) => {
      this.isAwaited = event.detail;
      this.enterSizes();
    });
  }

  // Take a launch, and return whether it is a new one.
  take(meta) {
    if (this.picture?.meta === meta) return false;
    const picture = this.picture = new Picture(meta), point = this.point;
    for (const corner of this.corners) corner.remove();
    this.corners = meta.panels ? picture.orders.map(() => make("div", { class: "corner" })) : [];
    this.layer.prepend(...this.corners);
    this.writeLoads(1);
    const remains = point?.m < meta.extents[0] && point.n < meta.extents[1] && (!meta.panels || picture.orders[point.map]);
    this.choose(remains ? point : null);
    const keys = ["arrow keys move"];
    if (picture.handles.BLOCK_M) keys.push("Shift and arrows change BLOCK_M and BLOCK_N");
    if (picture.handles.GROUP_SIZE) keys.push("plus and minus change GROUP_SIZE");
    if (this.isOwn) this.layer.ariaLabel = `Tiles of the map: ${keys.join(", ")}`;
    return true;
  }

  // Write each order's loads into its corner, with a bar that all orders scale alike, and return them in words.
  writeLoads(scale) {
    return this.corners.map((corner, map) => {
      const order = this.picture.orders[map], { blocks, what, detail } = order.load(this.picture.step);
      corner.innerHTML = `<p class="count quiet" title="distinct blocks ${what}${detail}"><b>${written(blocks)}</b><span>blocks <span>${what}</span></span></p>
        <div class="bar"><i style="width: ${100 * Math.min(1, blocks / scale)}%"></i></div>`;
      return `${this.isOwn ? "" : "Pinned: "}${order.title}: ${blocks} distinct blocks ${what}${detail}`;
    });
  }

  // Lay a step over the picture that is about to be drawn.
  lay(detail, step) {
    this.picture.lay(detail, step);
    this.marks?.lay(detail, this.picture);
  }

  axes(map) {
    const [x, y] = ["xaxis", "yaxis"].map((name) => this.plot._fullLayout?.[map ? name + (map + 1) : name]);
    return x?._length ? { x, y } : null;
  }

  // A rectangle of a map, in tiles, as pixels.
  box(map, left, top, right, bottom, least = 3) {
    const { x, y } = this.axes(map), size = (axis, from, to) => Math.max(least, axis.d2p(to) - axis.d2p(from));
    return { x: x._offset + x.d2p(left), y: y._offset + y.d2p(top), width: size(x, left, right), height: size(y, top, bottom) };
  }

  // The pointer's place in a map, in tiles: [across, down].
  inTiles(event, map) {
    const { x, y } = this.axes(map), frame = this.plot.getBoundingClientRect();
    return [x.p2d(event.x - frame.x - x._offset), y.p2d(event.y - frame.y - y._offset)];
  }

  place() {
    const { plot, layer } = this, { down, across } = this.picture.meta.grid;
    setBox(layer, { left: plot.offsetLeft, top: plot.offsetTop, width: plot.clientWidth, height: plot.clientHeight });
    layer.hidden = !this.axes(0);
    if (layer.hidden) return;
    this.corners.forEach((corner, map) => {
      const { x, y, width, height } = this.box(map, across.along_k[0], down.along_k[0], across.along_k[1], down.along_k[1]);
      // Zoomed in, the map has no corner.
      corner.hidden = Math.abs(x - this.axes(map).x._offset) > 2 || y < -2;
      setBox(corner, { left: x, top: y, width, height });
    });
    this.marks?.draw(this);
    this.draw();
  }

  // The tile (map, m, n) under the pointer, or the block along K of A (map, m, k) or B (map, n, k); null outside.
  pointAt(event) {
    const { meta, orders } = this.picture, { down, across, slice_of: slices } = meta.grid, [rows, columns] = meta.extents;
    const blockAt = (at, [from, to]) => Math.floor((at - from) / (to - from) * slices.length);
    for (let map = 0; map < (meta.panels ? orders : meta.tensors).length; map++) {
      if (!this.axes(map)) return null;
      const [x, y] = this.inTiles(event, map), [n, m] = (this.picture.isTransposed(map) ? [y, x] : [x, y]).map(Math.floor);
      const isRow = m >= 0 && m < rows, isColumn = n >= 0 && n < columns;
      if (isRow && isColumn) return { map, m, n };
      const k = isRow ? blockAt(x, across.along_k) : blockAt(y, down.along_k);
      if ((isRow || isColumn) && k >= 0 && k < slices.length) return isRow ? { map, m, k } : { map, n, k };
    }
    return null;
  }

  move(event) {
    if (this.drag) return this.pull(event);
    const isInside = this.plot.contains(event.target), hasFocus = this.layer.contains(document.activeElement);
    if (this.svg.contains(event.target) || (hasFocus && !isInside)) return;
    const point = isInside ? this.pointAt(event) : null;
    if (JSON.stringify(point) !== JSON.stringify(this.point)) this.choose(point);
  }

  release(event) {
    const { pressed, drag } = this;
    this.pressed = this.drag = null;
    // A tap arrives without a hover before it.
    const isTap = event.pointerType === "touch" && pressed && Math.hypot(event.x - pressed.from.x, event.y - pressed.from.y) < 4;
    if (drag || isTap) this.choose(drag ? this.point : pressed.at);
  }

  press(event) {
    const { m = 0, n = 0 } = this.point ?? {}, clip = (tile, side) => Math.max(0, Math.min(tile, this.picture.meta.extents[side] - 1));
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (down || right) {
      if (event.shiftKey) this.step(down ? "BLOCK_M" : "BLOCK_N", down || right);
      else this.choose({ map: 0, m: clip(m + down, 0), n: clip(n + right, 1) });
    } else if ("+=-−".includes(event.key)) this.step("GROUP_SIZE", "+=".includes(event.key) ? 1 : -1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  step(name, by) {
    const { value, values = [] } = this.picture.handles[name] ?? {}, next = values[values.indexOf(this.sizes.get(name) ?? value) + by];
    if (next) this.enterSizes(name, next);
  }

  // Follow an address with the new sizes, so that the forms show them, too. Later sizes wait for the reply.
  enterSizes(changed, size) {
    if (changed) this.sizes.set(changed, size);
    if (this.isAwaited || !this.sizes.size) return;
    const tour = [...new URLSearchParams(location.search)].filter(([name]) => ["tour", "stop"].includes(name));
    const query = Object.fromEntries([...address(), ...tour, ...this.sizes]);
    this.sizes.clear();
    emit("follow", new URLSearchParams(query).toString());
  }

  // A dragged edge: the allowed size that is nearest to the pointer, in tiles of the picture in which the drag began. A
  // later picture has its sizes before its axes.
  pull(event) {
    const { drag } = this, sizes = {
      BLOCK_M: drag.start * (1 + (event.y - drag.from.y) / drag.tile.height),
      BLOCK_N: drag.start * (1 + (event.x - drag.from.x) / drag.tile.width),
      GROUP_SIZE: this.inTiles(event, 0)[1],
    };
    const distance = (size) => Math.abs(Math.log2(Math.max(sizes[drag.name], 0.5) / size));
    const next = this.picture.handles[drag.name].values.reduce((best, size) => (distance(size) < distance(best) ? size : best));
    if (next !== drag.value) this.enterSizes(drag.name, next);
    Object.assign(drag, { value: next, at: event });
    this.choose(this.point);
  }

  choose(point) {
    this.point = point;
    const { drag, tip } = this;
    tip.hidden = !drag && !point;
    tip.innerText = drag ? `${drag.name} ${drag.value}` : point ? this.picture.words(point).join("\n") : "";
    this.draw();
  }

  draw() {
    if (!this.axes(0)) return;
    if (!this.tip.hidden) this.placeTip();
    const isTile = this.point && !this.drag && !("k" in this.point);
    this.svg.innerHTML = [...isTile ? this.drawTile(this.point) : [], this.drawGroupHandle()].join("");
  }

  drawGroupHandle() {
    const { picture: { handles, meta }, isOwn } = this;
    if (!isOwn || !handles.GROUP_SIZE) return "";
    const [rows, columns] = meta.extents, size = Math.min(handles.GROUP_SIZE.value, rows);
    const { x, y, width } = this.box(0, 0, size, Math.min(size, columns), size), cell = this.box(0, 0, 0, 1, 1).height;
    // Between small cells, the handle would look like a stray dash, so it is visible only under the pointer.
    const isSmall = cell < 12, height = isSmall ? 4 : Math.min(8, cell / 4), box = { x: x + width / 2 - 14, y: y - height / 2, width: 28, height };
    return rect(box, `rx="4" class="handle down ${isSmall ? "" : "group"}" data-name="GROUP_SIZE"`);
  }

  *drawTile(point) {
    const { handles, meta: { panels, tensors } } = this.picture;
    if (panels) yield* this.drawPanels(point);
    for (const map of panels ? [point.map] : tensors.keys()) {
      const box = this.tileBox(point, map);
      yield rect(box, 'fill="none" stroke="var(--new)" stroke-width="3"');
      if (!this.isOwn || map || !panels || box.width < 10 || box.height < 10) continue;
      if (handles.BLOCK_N) yield rect({ ...box, x: box.x + box.width - 4, width: 8 }, 'class="handle across" data-name="BLOCK_N"');
      if (handles.BLOCK_M) yield rect({ ...box, y: box.y + box.height - 4, height: 8 }, 'class="handle down" data-name="BLOCK_M"');
    }
  }

  tileBox({ m = 0, n = 0 }, map) {
    const [down, across] = this.picture.isTransposed(map) ? [n, m] : [m, n];
    return this.box(map, across, down, across + 1, down + 1);
  }

  // The tile's row of A and column of B, with a line between blocks.
  *drawPanels(point) {
    const { map, m, n } = point, { down, across, blocks, slice_of: slices } = this.picture.meta.grid;
    const { entry, panels } = this.picture.reads(point);
    const boxes = [(from, to) => this.box(map, from, m, to, m + 1), (from, to) => this.box(map, n, from, n + 1, to)];
    for (const [side, boxOf] of boxes.entries()) {
      const [from, to] = [across, down][side].along_k;
      yield rect(boxOf(from, to), `class="panel ${panels[side].first === entry ? "new" : ""}"`);
      for (let k = 1; blocks && k < slices.length; k++) {
        const edge = from + (to - from) * k / slices.length;
        yield rect({ ...boxOf(edge, edge), [side ? "height" : "width"]: 1 }, 'fill="white"');
      }
    }
  }

  // Below the tile or, during a drag, below the pointer.
  placeTip() {
    const { drag, point } = this, frame = this.plot.getBoundingClientRect(), tile = this.tileBox(point ?? {}, point?.map ?? 0);
    const [x, y] = drag ? [drag.at.x - frame.x, drag.at.y - frame.y] : [tile.x, tile.y + tile.height];
    setBox(this.tip, { left: Math.max(0, Math.min(x - 40, this.layer.clientWidth - 400)), top: y + 26 });
  }
}

const rect = ({ x, y, width, height }, attributes) => `<rect x="${x}" y="${y}" width="${width}" height="${height}" ${attributes}/>`;
