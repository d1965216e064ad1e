// Over the map: the corner above A, with loads and the L2, and the tiles that a person points at, drags or opens (goes
// between launch.js and player.js).

// The L2 during a launch in one order, whose waves run in lockstep along K. As predict/l2.py: a repeated use misses with
// the share of sets that other bytes have filled since, and expected values take the place of a random cache.
class Shelf {
  constructor(order) {
    const [rows, columns] = order.meta.piece_bytes;
    Object.assign(this, { order, rows: rows.length, bytes: Float64Array.of(...rows, ...columns) });
  }

  // What the first entries have fetched, hit and evicted, and which bytes each wave has left on the shelf.
  at(entries) {
    const { wave_ends: ends } = this.order, { bytes } = this;
    if (!this.state || (this.waves && ends[this.waves - 1] > entries)) {
      this.waves = 0;
      this.state = { last: new Int32Array(bytes.length).fill(-1), held: new Float64Array(bytes.length), shelved: [], fetched: 0, evicted: 0, hits: 0 };
    }
    const from = () => (this.waves ? ends[this.waves - 1] : 0);
    for (; ends[this.waves] <= entries; this.waves++) this.play(this.state, from(), ends[this.waves]);
    if (from() >= entries) return this.state;
    const { last, held, shelved } = this.state, part = { ...this.state, last: last.slice(), held: held.slice(), shelved: [...shelved] };
    this.play(part, from(), entries);
    return part;
  }

  play(state, from, to) {
    const { order, bytes, rows, waves: wave } = this, { slices, depths, l2 } = order.meta, { last, held, shelved } = state;
    const users = new Uint32Array(bytes.length), pieces = [], again = [], evicted = [], ends = order.wave_ends;
    order.each(from, to, (m, n, slice) => {
      for (const piece of [m * slices + slice, rows + n * slices + slice]) if (!users[piece]++) pieces.push(piece);
    });
    // Each half of the L2 keeps a copy of what SMs on its side read: 1.5 copies for one user, towards 2 for many.
    const copies = (piece) => (2 - 2 ** -users[piece]) * bytes[piece];
    let older = 0, newer = 0;
    for (const piece of pieces) {
      older += copies(piece);
      if (last[piece] >= 0) again[last[piece]] = (again[last[piece]] ?? 0) + copies(piece);
    }
    for (let v = wave - 1; v >= 0; v--) {
      if (again[v]) {
        const tiles = (ends[v] - (v ? ends[v - 1] : 0) + to - from) / 2 + from - ends[v];
        evicted[v] = fullSets((newer + (shelved[v] + older) / 2 + 1.5 * l2.tile_bytes * tiles) / l2.bytes, l2.ways);
      }
      newer += shelved[v] ?? 0;
      older -= again[v] ?? 0;
    }
    shelved[wave] = 0;
    for (const piece of pieces) {
      const before = last[piece], share = before < 0 ? 1 : evicted[before];
      state.fetched += share * bytes[piece];
      if (before >= 0) {
        state.evicted += share * bytes[piece];
        shelved[before] -= held[piece];
      }
      state.hits += (users[piece] - share) * depths[piece % slices];
      last[piece] = wave;
      held[piece] = copies(piece);
      shelved[wave] += held[piece];
    }
  }
}

// The share of sets that have received at least as many lines as they have ways (Poisson).
function fullSets(touched, ways) {
  let fewer = 0, term = Math.exp(-ways * touched);
  for (let j = 1; j <= ways; j++) {
    fewer += term;
    term *= ways * touched / j;
  }
  return 1 - fewer;
}

const make = (tag, attributes, ...children) => {
  const node = Object.assign(document.createElement(tag), attributes);
  node.append(...children);
  return node;
};
const sizeOf = (bytes) => {
  const unit = bytes < 1e6 ? ["kB", 1e3] : bytes < 1e9 ? ["MB", 1e6] : ["GB", 1e9];
  return `${(bytes / unit[1]).toLocaleString("en", { maximumSignificantDigits: 3 })} ${unit[0]}`;
};

// The corner above A of one order: its loads, a bar that all orders scale alike, and the L2.
class Corner {
  constructor(order) {
    [this.number, this.what, this.bar, this.hits, this.shelf, this.caption] = ["b", "span", "i", "span", "div", "p"].map((tag) => make(tag));
    this.what.className = "what";
    this.shelf.className = "shelf";
    this.caption.className = "caption";
    const bar = make("div", { className: "bar" }, this.bar), heading = make("p", { className: "l2" }, make("b", {}, "L2"), " ", this.hits);
    this.node = make("div", { className: "corner" }, make("p", { className: "count" }, this.number, " ", this.what), bar, ...(order.meta.l2 ? [heading, this.shelf, this.caption] : []));
    this.order = order;
    if (order.meta.l2) this.model = new Shelf(order);
  }

  show([blocks, what], scale, step) {
    this.number.textContent = written(blocks);
    [this.what.textContent] = what.split(":");
    this.what.title = what;
    this.bar.style.width = `${100 * Math.min(1, blocks / (scale || 1))}%`;
    if (!this.model) return;
    const { order, model: { bytes } } = this, { l2, first } = order.meta;
    const state = this.model.at(step ? order.end(Math.min(step, order.count)) : Math.min(first || order.total, order.total));
    this.hits.textContent = `${written(Math.round(state.hits))} hits`;
    const fits = state.evicted < 0.005 * state.fetched;
    this.caption.textContent = fits ? `Predicted: all of it fits in the ${l2.gpu}’s L2: nothing is evicted.` : `Predicted: ${sizeOf(state.evicted)} evicted, fetched again.`;
    const besides = l2.besides ? ` Other inputs: ${sizeOf(l2.besides)}, each read once.` : "";
    const assumed = l2.assumed ? " One program per SM is assumed." : "";
    this.shelf.title = `Predicted, in lockstep: ${sizeOf(state.fetched)} fetched from DRAM. Both halves of the L2 (${sizeOf(l2.bytes)}) keep copies.${l2.adds ? " Inputs only." : ""}${besides}${assumed}`;
    Object.assign(this.node.dataset, { fetched: state.fetched, evicted: state.evicted, hits: state.hits });
    // Most recent at the left. If all inputs fit, the bar is as long as they are: otherwise nothing could be seen.
    const whole = Math.min(l2.bytes, 2 * bytes.reduce((sum, size) => sum + size, 0)), { used, isNew } = order.now;
    const kinds = [["var(--new)", 0], ["var(--reused)", 0], ["var(--before)", 0]];
    state.held.forEach((size, piece) => { kinds[isNew.has(piece) ? 0 : used.has(piece) ? 1 : 2][1] += size; });
    let at = 0;
    const stops = kinds.flatMap(([color, size]) => {
      const start = at;
      at += 100 * size / whole;
      return size ? [`${color} ${start}% ${at}%`] : [];
    });
    this.shelf.classList.toggle("full", at > 100);
    this.shelf.style.background = `linear-gradient(90deg, ${[...stops, `transparent ${at}%`].join(", ")})`;
  }
}

// The layer over one picture. Only the own picture's tiles can be touched.
class Overlay {
  constructor(plot, isOwn) {
    Object.assign(this, { plot, wanted: new Map(), isAwaited: false }); // sizes to set
    this.layer = make("div", { className: "touch" });
    this.svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.svg.setAttribute("aria-hidden", "true");
    this.tip = make("p", { className: "tile-tip", hidden: true });
    this.tip.setAttribute("role", "status");
    this.layer.append(this.svg, this.tip);
    this.place = this.place.bind(this);
    if (isOwn) this.listen();
    plot.parentNode.classList.add("touched");
    plot.before(this.layer);
    new ResizeObserver(() => setTimeout(this.place, 150)).observe(plot);
  }

  // A picture is about to be drawn: place the layer once the axes have moved.
  take(picture) {
    if (this.picture !== picture) {
      this.picture = picture;
      const { handles } = picture, { panels, extents: [rows, columns] } = picture.meta;
      this.corners?.forEach(({ node }) => node.remove());
      this.corners = panels ? picture.orders.map((order) => new Corner(order)) : [];
      this.layer.prepend(...this.corners.map(({ node }) => node));
      if (this.point && (this.point.m >= rows || this.point.n >= columns || (panels && !picture.orders[this.point.map]))) this.point = null;
      this.choose(this.point, !this.tip.hidden);
      const sizes = [handles.BLOCK_M && "Shift and arrows change BLOCK_M and BLOCK_N", handles.GROUP_SIZE && "plus and minus change GROUP_SIZE"];
      const keys = ["arrow keys move", "Enter opens Memory", ...sizes.filter(Boolean)];
      if (this.layer.tabIndex === 0) this.layer.setAttribute("aria-label", `Tiles of the map: ${keys.join(", ")}`);
    }
    requestAnimationFrame(() => {
      for (const event of ["plotly_afterplot", "plotly_relayout"]) {
        this.plot.removeListener?.(event, this.place);
        this.plot.on?.(event, this.place);
      }
      this.place();
    });
  }

  axes(map) {
    const full = this.plot._fullLayout, x = full?.[`xaxis${map ? map + 1 : ""}`], y = full?.[`yaxis${map ? map + 1 : ""}`];
    return x?._length ? { x, y } : null;
  }

  // A rectangle of a map, in tiles, as pixels.
  box(map, left, top, right, bottom) {
    const { x, y } = this.axes(map), edges = (axis, from, to) => [from, to].map((value) => axis._offset + axis.d2p(value));
    const [[l, r], [t, b]] = [edges(x, left, right), edges(y, top, bottom)];
    return { x: l, y: t, width: Math.max(3, r - l), height: Math.max(3, b - t) };
  }

  place() {
    if (!this.picture) return;
    const { plot, layer, corners } = this, { down, across } = this.picture.meta.place;
    Object.assign(layer.style, { left: `${plot.offsetLeft}px`, top: `${plot.offsetTop}px`, width: `${plot.clientWidth}px`, height: `${plot.clientHeight}px` });
    layer.hidden = !this.axes(0);
    if (layer.hidden) return;
    corners.forEach(({ node }, map) => {
      const { x, y, width, height } = this.box(map, across.along_k[0], down.along_k[0], across.along_k[1], down.along_k[1]);
      // Zoomed in, the map has no corner.
      node.hidden = Math.abs(x - this.axes(map).x._offset) > 2 || y < -2;
      Object.assign(node.style, { left: `${x}px`, top: `${y}px`, width: `${width}px`, height: `${height}px` });
    });
    this.draw();
  }

  show(counts, scale, step) {
    this.corners.forEach((corner, i) => corner.show(counts[i].slice(1), scale, step));
  }

  listen() {
    const { layer } = this, on = (target, event, action) => target.addEventListener(event, action);
    layer.tabIndex = 0;
    layer.setAttribute("role", "application");
    on(document, "pointermove", (event) => this.move(event));
    on(document, "pointerup", (event) => this.release(event));
    on(this.plot, "pointerdown", (event) => {
      this.pressed = event.target.closest(".modebar") ? null : { x: event.clientX, y: event.clientY, at: this.tileAt(event) };
    });
    on(this.svg, "pointerdown", (event) => {
      const { name } = event.target.dataset;
      if (!name) return;
      event.preventDefault();
      this.drag = { name, ...this.point, value: this.picture.handles[name].value };
    });
    on(document, "tilescope:awaited", ({ detail }) => {
      this.isAwaited = detail;
      if (!detail) this.send();
    });
    on(layer, "keydown", (event) => this.press(event));
    on(layer, "focus", () => { if (layer.matches(":focus-visible")) this.choose(this.point ?? { map: 0, m: 0, n: 0 }, true); });
    on(layer, "blur", () => this.choose(null));
  }

  // The tile under the pointer; null outside C.
  tileAt({ clientX, clientY }) {
    const { meta } = this.picture, frame = this.plot.getBoundingClientRect();
    for (let map = 0; map < (meta.panels ? this.picture.orders.length : meta.tensors.length); map++) {
      const axes = this.axes(map);
      if (!axes) return null;
      const x = Math.floor(axes.x.p2d(clientX - frame.left - axes.x._offset)), y = Math.floor(axes.y.p2d(clientY - frame.top - axes.y._offset));
      const [m, n] = !meta.panels && meta.transposed[map] ? [x, y] : [y, x];
      if (m >= 0 && n >= 0 && m < meta.extents[0] && n < meta.extents[1]) return { map, m, n };
    }
    return null;
  }

  move(event) {
    if (this.drag) return this.pull(event);
    const isInside = this.plot.contains(event.target), isHandle = this.svg.contains(event.target);
    if (isHandle || (!isInside && (!this.point || this.layer.contains(document.activeElement)))) return undefined;
    const point = isInside ? this.tileAt(event) : null, before = this.point;
    if (point?.map === before?.map && point?.m === before?.m && point?.n === before?.n) return undefined;
    // The first few visits explain the words.
    if (point && !before) {
      const visits = Number(localStorage.getItem("tilescope-hovers") ?? 0);
      this.explains = visits < 5;
      if (this.explains) localStorage.setItem("tilescope-hovers", visits + 1);
    }
    return this.choose(point, this.explains);
  }

  release(event) {
    const { pressed, drag } = this;
    this.pressed = this.drag = null;
    if (drag) return this.draw();
    const isClick = pressed?.at && Math.hypot(event.clientX - pressed.x, event.clientY - pressed.y) < 4;
    if (!isClick) return undefined;
    // A finger has not hovered: its first tap shows the tile.
    if (event.pointerType === "touch" && (this.tapped?.m !== pressed.at.m || this.tapped?.n !== pressed.at.n)) {
      this.tapped = pressed.at;
      return this.choose(pressed.at, true);
    }
    return this.open(pressed.at);
  }

  press(event) {
    const { handles } = this.picture, { extents: [rows, columns] } = this.picture.meta, { m, n } = this.point ?? { m: 0, n: 0 };
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = (name, by) => {
      const { value, values } = handles[name] ?? {}, next = values?.[values.indexOf(this.wanted.get(name) ?? value) + by];
      if (next) this.set(name, next);
    };
    if (down || right) {
      if (event.shiftKey) step(down ? "BLOCK_M" : "BLOCK_N", down || right);
      else this.choose({ map: 0, m: Math.min(rows - 1, Math.max(0, m + down)), n: Math.min(columns - 1, Math.max(0, n + right)) }, true);
    } else if (event.key === "Enter") this.open(this.point);
    else if ("+=-−".includes(event.key)) step("GROUP_SIZE", "+=".includes(event.key) ? 1 : -1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  // The page follows an address, so that its forms show the new size, too. Addresses of later sizes wait for the reply.
  set(name, value) {
    this.wanted.set(name, value);
    if (!this.isAwaited) this.send();
  }

  send() {
    if (!this.wanted.size) return;
    const query = new URLSearchParams(document.body.dataset.address), tour = new URLSearchParams(location.search);
    for (const name of ["tour", "stop"]) if (tour.has(name)) query.set(name, tour.get(name));
    for (const [name, value] of this.wanted) query.set(name, value);
    this.wanted.clear();
    document.dispatchEvent(new CustomEvent("tilescope:follow", { detail: query.toString() }));
  }

  // A dragged edge: the allowed size that is nearest to the pointer.
  pull({ clientX, clientY }) {
    const { drag } = this, { handles } = this.picture, { value, values } = handles[drag.name], frame = this.plot.getBoundingClientRect();
    const { x, y } = this.axes(0), across = x.p2d(clientX - frame.left - x._offset), down = y.p2d(clientY - frame.top - y._offset);
    drag.unit ??= value;
    const start = drag.name === "BLOCK_N" ? drag.n : drag.m, at = drag.name === "BLOCK_N" ? across : down;
    const pulled = drag.name === "GROUP_SIZE" ? down : at * value - start * drag.unit;
    const distance = (size) => Math.abs(Math.log2(Math.max(pulled, 0.5) / size));
    const next = [...values].reduce((best, size) => (distance(size) < distance(best) ? size : best));
    if (next !== drag.value) this.set(drag.name, next);
    drag.value = next;
    this.draw();
  }

  open(point) {
    if (!point) return;
    const order = this.picture.orders[0], query = new URLSearchParams(document.body.dataset.address);
    query.set("tab", "coalescing");
    // The row-major map is not this kernel's: the program that computes the tile here.
    query.set("program", order.program(order.first.tile[point.m * order.columns + point.n]));
    document.dispatchEvent(new CustomEvent("tilescope:follow", { detail: query.toString() }));
  }

  choose(point, isExplained) {
    this.point = point;
    this.tip.hidden = !point || !isExplained;
    if (!this.tip.hidden) this.tip.innerText = this.words(point);
    this.draw();
  }

  // Which program computes a tile, and what it loads: [text, piece, whether it is the first to load it] for A and B.
  reads({ map, m, n }) {
    const { meta } = this.picture, order = this.picture.orders[meta.panels ? map : 0], entry = order.first.tile[m * order.columns + n];
    const slice = Math.floor(order.place(entry) / (order.rows * order.columns)), program = written(order.program(entry));
    if (!meta.panels) return { program, panels: [] };
    const panels = [["a", "Row", m], ["b", "Column", n]].map(([side, word, at], i) => {
      const first = order.first[side][at * meta.slices + slice], isNew = first === entry;
      const by = isNew ? "loaded now" : `loaded before, by program ${written(order.program(first))}`;
      return { text: `${word} ${at} of ${meta.panels[i]}, ${several(meta.depths[slice], "block")}: ${by}.`, isNew };
    });
    return { program, panels };
  }

  words(point) {
    const { handles, meta: { output } } = this.picture, { program, panels } = this.reads(point);
    const size = handles.BLOCK_M && handles.BLOCK_N ? `, ${handles.BLOCK_M.value} × ${handles.BLOCK_N.value} elements of ${output}` : "";
    const block = panels.length ? ["A block is what one step of its loop along K loads."] : [];
    return [`Program ${program} computes this tile${size}.`, ...panels.map(({ text }) => text), ...block].join("\n");
  }

  draw() {
    const { point, drag, svg } = this, { meta, handles } = this.picture, { place, panels, transposed } = meta, parts = [];
    const rect = (box, attributes) => parts.push(`<rect ${Object.entries({ ...box, ...attributes }).map(([name, value]) => `${name}="${value}"`).join(" ")}/>`);
    const mark = (box, isNew) => rect(box, { fill: isNew ? "var(--new)" : "var(--reused)", "fill-opacity": 0.55, stroke: isNew ? "#8a5b00" : "#075985", "stroke-width": 2 });
    if (!this.axes(0)) return;
    const { down, across } = place;
    if (point && panels && !drag) {
      const { map, m, n } = point, [a, b] = this.reads(point).panels, depth = place.slice_of.length;
      mark(this.box(map, across.along_k[0], m, across.along_k[1], m + 1), a.isNew);
      mark(this.box(map, n, down.along_k[0], n + 1, down.along_k[1]), b.isNew);
      for (let k = 1; place.blocks && k < depth; k++) {
        const [x, y] = [across, down].map(({ along_k: [from, to] }) => from + (to - from) * k / depth);
        for (const box of [this.box(map, x, m, x, m + 1), this.box(map, n, y, n + 1, y)]) rect({ ...box, [box.width > 3 ? "height" : "width"]: 1 }, { fill: "#fff" });
      }
    }
    if (point && !drag) {
      const maps = panels ? [point.map] : meta.tensors.map((_, i) => i);
      for (const map of maps) {
        const [y, x] = !panels && transposed[map] ? [point.n, point.m] : [point.m, point.n], box = this.box(map, x, y, x + 1, y + 1);
        rect(box, { fill: "none", stroke: "var(--new)", "stroke-width": 3 });
        if (map !== 0 || !panels || box.width < 10 || box.height < 10) continue;
        if (handles.BLOCK_N) rect({ ...box, x: box.x + box.width - 4, width: 8 }, { class: "handle across", "data-name": "BLOCK_N" });
        if (handles.BLOCK_M) rect({ ...box, y: box.y + box.height - 4, height: 8 }, { class: "handle down", "data-name": "BLOCK_M" });
      }
      const box = this.box(point.map, point.n, point.m, point.n + 1, point.m + 1), width = this.layer.clientWidth;
      Object.assign(this.tip.style, { left: `${Math.max(0, Math.min(box.x - 40, width - 400))}px`, top: `${box.y + box.height + 26}px` });
    }
    if (handles.GROUP_SIZE) {
      const size = Math.min(drag?.name === "GROUP_SIZE" ? drag.value : handles.GROUP_SIZE.value, meta.extents[0]);
      const line = this.box(0, 0, size, Math.min(size, meta.extents[1]), size);
      if (drag?.name === "GROUP_SIZE") rect({ ...this.box(0, 0, 0, meta.extents[1], size) }, { fill: "none", stroke: "var(--accent)", "stroke-width": 2 });
      const middle = line.x + line.width / 2;
      rect({ x: middle - 14, y: line.y - 4, width: 28, height: 8, rx: 4 }, { class: "handle down group", "data-name": "GROUP_SIZE" });
      if (drag?.name === "GROUP_SIZE") parts.push(label(middle + 20, line.y + 5, `GROUP_SIZE ${size}`));
    }
    if (drag && drag.name !== "GROUP_SIZE") {
      const { value } = handles[drag.name], ratio = (drag.unit ?? value) / value, isWide = drag.name === "BLOCK_N";
      const from = isWide ? [drag.n * ratio, drag.m] : [drag.n, drag.m * ratio], size = drag.value / value;
      const box = this.box(0, from[0], from[1], from[0] + (isWide ? size : 1), from[1] + (isWide ? 1 : size));
      rect(box, { fill: "none", stroke: "var(--accent)", "stroke-width": 3 });
      parts.push(label(box.x + box.width + 6, box.y + box.height / 2, `${drag.name} ${drag.value}`));
    }
    svg.innerHTML = parts.join("");
  }
}

const label = (x, y, text) => `<text x="${x}" y="${y}">${text}</text>`;
