// A launch that a picture carries (`layout.meta`, see map_figure.py), and any step of it (goes before player.js).
const written = (value) => value.toLocaleString("en");
const several = (count, what) => `${written(count)} ${what}${count === 1 ? "" : "s"}`;

// An array whose values are made when somebody asks for them.
function lazily(count, value) {
  const values = Array.from({ length: count });
  for (let i = 0; i < count; i++) {
    const made = (one) => { Object.defineProperty(values, i, { value: one }); return one; };
    Object.defineProperty(values, i, { get: () => made(value(i)), configurable: true, enumerable: true });
  }
  return values;
}

// Texts of cells that nobody points at cost nothing. (Plotly looks at the first row of them all the same.)
const textsOf = (rows, columns, text) => lazily(rows, (r) => lazily(columns, (c) => text(r, c)));

// One order: how far along each tile and each piece of a panel is after the first so many steps.
class Order {
  constructor(launch, order) {
    Object.assign(this, order);
    this.meta = launch;
    this.now = { used: new Set(), isNew: new Set() };
    [this.rows, this.columns] = launch.extents;
    this.total = this.rows * this.columns * launch.slices;
  }

  // The entry after the last one of step `number` − 1.
  end(number) {
    if (!this.tiles) return number;
    if (!this.ends) {
      this.ends = new Uint32Array(this.count + 1);
      for (let i = 0; i < this.count; i++) this.ends[i + 1] = this.ends[i] + this.tiles[i];
    }
    return this.ends[number];
  }

  place(entry) {
    return this.places ? this.places[entry] : entry;
  }

  // Calls visit(pid_m, pid_n, slice) for entries `from` to `to`, the last one left out.
  each(from, to, visit) {
    const plane = this.rows * this.columns;
    for (let i = from; i < to; i++) {
      const place = this.place(i), slice = Math.floor(place / plane), rest = place - slice * plane;
      const m = Math.floor(rest / this.columns);
      visit(m, rest - m * this.columns, slice);
    }
  }

  reset() {
    const { slices, place } = this.meta;
    this.finished = this.blocksLoaded = 0;
    this.done = new Uint32Array(place.down.cells * place.across.cells);
    this.seen = { a: new Uint8Array(this.rows * slices), b: new Uint8Array(this.columns * slices) };
    this.touched = { a: new Uint32Array(place.down.cells * slices), b: new Uint32Array(place.across.cells * slices) };
  }

  // Goes through the first so many steps.
  finish(steps) {
    if (this.finished === undefined || steps < this.finished) this.reset();
    const { slices, place, depths } = this.meta, { seen, touched } = this;
    this.each(this.end(this.finished), this.end(steps), (m, n, slice) => {
      const r = Math.floor(m / place.stride), c = Math.floor(n / place.stride);
      this.done[r * place.across.cells + c]++;
      for (const [side, piece, cell] of [["a", m, r], ["b", n, c]]) {
        if (seen[side][piece * slices + slice]) continue;
        seen[side][piece * slices + slice] = 1;
        touched[side][cell * slices + slice]++;
        this.blocksLoaded += depths[slice] ?? 0;
      }
    });
    this.finished = steps;
  }

  // Values of C's cells, and of A's and B's by slice, during a step: the share that is done or loaded, 0 to 1; 2 for
  // what is used again, 3 for what is new.
  frame(number) {
    const current = Math.min(number, this.count), { slices, place, depths } = this.meta;
    const { stride, down, across } = place;
    this.finish(number > this.count ? this.count : current - 1);
    const high = (r) => Math.min(stride, this.rows - r * stride), wide = (c) => Math.min(stride, this.columns - c * stride);
    const grid = (rows, columns, value) =>
      Array.from({ length: rows }, (_, r) => Float32Array.from({ length: columns }, (_, c) => value(r, c)));
    const c = grid(down.cells, across.cells, (r, k) => this.done[r * across.cells + k] / (high(r) * wide(k) * slices));
    const a = grid(down.cells, slices, (r, k) => this.touched.a[r * slices + k] / high(r));
    const b = grid(slices, across.cells, (k, n) => this.touched.b[n * slices + k] / wide(n));
    const isNew = { a: new Set(), b: new Set() }, used = { a: new Set(), b: new Set() };
    if (number <= this.count) this.each(this.end(current - 1), this.end(current), (m, n, slice) => {
      const r = Math.floor(m / stride), k = Math.floor(n / stride);
      c[r][k] = 3;
      for (const [side, piece] of [["a", m * slices + slice], ["b", n * slices + slice]]) {
        used[side].add(piece);
        if (!this.seen[side][piece]) isNew[side].add(piece);
      }
      a[r][slice] = Math.max(isNew.a.has(m * slices + slice) ? 3 : 2, a[r][slice]);
      b[slice][k] = Math.max(isNew.b.has(n * slices + slice) ? 3 : 2, b[slice][k]);
    });
    const blocks = (pieces) => [...pieces].reduce((sum, piece) => sum + (depths[piece % slices] ?? 0), 0);
    const bytes = (pieces, of) => [...pieces].reduce((sum, piece) => sum + (of?.[piece] ?? 0), 0);
    const both = ({ a: rows, b: columns }) => new Set([...rows, ...[...columns].map((piece) => this.rows * slices + piece)]);
    this.now = { used: both(used), isNew: both(isNew) }; // as pieces of both panels, rows first
    this.used = blocks(used.a) + blocks(used.b);
    this.usedBytes = bytes(used.a, this.meta.piece_bytes[0]) + bytes(used.b, this.meta.piece_bytes[1]);
    this.loaded = this.blocksLoaded + blocks(isNew.a) + blocks(isNew.b);
    return { c, a, b };
  }

  // The picture's grid of what belongs to C, A and B: see map_figure.py.
  composed(c, a, b, nothing) {
    const { slice_of: slices, down, across } = this.meta.place;
    const k = slices.length, top = k * down.repeat + (k && down.gap), left = k * across.repeat + (k && across.gap);
    const wide = left + across.cells;
    const value = (r, x) => {
      if (r >= top && x >= left) return c(r - top, x - left);
      if (r >= top && x < k * across.repeat) return a(r - top, Math.floor(x / across.repeat));
      if (x >= left && r < k * down.repeat) return b(Math.floor(r / down.repeat), x - left);
      return nothing;
    };
    return { height: top + down.cells, wide, value };
  }

  z(number) {
    const { c, a, b } = this.frame(number), slices = this.meta.place.slice_of;
    if (!this.meta.panels) return c;
    return filled(this.composed((r, x) => c[r][x], (r, k) => a[r][slices[k]], (k, x) => b[slices[k]][x], NaN));
  }

  // The first entry of each tile, and the first that reads each piece of a panel.
  get first() {
    const { slices } = this.meta, none = 0xffffffff;
    const found = {
      tile: new Uint32Array(this.rows * this.columns).fill(none),
      a: new Uint32Array(this.rows * slices).fill(none), b: new Uint32Array(this.columns * slices).fill(none),
    };
    let entry = 0;
    const note = (array, at) => { if (array[at] === none) array[at] = entry; };
    this.each(0, this.total, (m, n, slice) => {
      note(found.tile, m * this.columns + n);
      note(found.a, m * slices + slice);
      note(found.b, n * slices + slice);
      entry++;
    });
    Object.defineProperty(this, "first", { value: found });
    return found;
  }

  program(entry) {
    return this.programs ? this.programs[entry] : entry;
  }

  // What an entry says of itself.
  says(entry) {
    const { sms, name, resident } = this.meta, program = this.program(entry);
    let low = 0, high = this.groups.from.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.groups.from[middle] <= entry) low = middle; else high = middle - 1;
    }
    const when = this.tiles
      ? `${name} ${this.stepOf(entry) + 1}` : this.programs ? `tile ${entry + 1}` : `wave ${Math.floor(program / resident) + 1}`;
    return `pid ${written(program)}, SM ${program % sms}<br>group ${written(this.groups.value[low])}, ${when}`;
  }

  stepOf(entry) {
    this.end(0);
    let low = 0, high = this.count - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ends[middle + 1] > entry) high = middle; else low = middle + 1;
    }
    return low;
  }

  // Texts of all cells of the picture, by row.
  texts(tensor) {
    const { panels, output, slices, place, tensors, transposed } = this.meta, by = place.stride;
    const of = (r, c) => this.first.tile[r * by * this.columns + c * by];
    const tile = (name, r, c) => `${name}: pid_m ${r * by}, pid_n ${c * by}<br>${this.says(of(r, c))}`;
    if (!panels) {
      const { down, across } = place, name = tensors[tensor], isTransposed = transposed[tensor];
      const [height, width] = isTransposed ? [across.cells, down.cells] : [down.cells, across.cells];
      return textsOf(height, width, (r, c) => (isTransposed ? tile(name, c, r) : tile(name, r, c)));
    }
    const [left, top] = panels;
    const along = (k) => (place.blocks ? `, block ${k} of K` : slices > 1 ? `, slice ${place.slice_of[k]}` : "");
    const read = (entry) => `<br>first read by ${this.says(entry)}`;
    const { height, wide, value } = this.composed(
      (r, c) => tile(output, r, c) + (slices > 1 ? `<br>the first of ${slices} slices of K` : ""),
      (r, k) => `${left}: pid_m ${r * by}${along(k)}${read(this.first.a[r * by * slices + place.slice_of[k]])}`,
      (k, c) => `${top}: pid_n ${c * by}${along(k)}${read(this.first.b[c * by * slices + place.slice_of[k]])}`,
      "",
    );
    return textsOf(height, wide, value);
  }

  // What stands in the cells of a small picture: the program, or, during a step, how many slices have begun.
  numbers(tensor, step) {
    const { slices, panels, transposed } = this.meta;
    let value = (r, c) => written(this.program(this.first.tile[r * this.columns + c]));
    if (step && slices > 1) {
      const begun = Uint32Array.from(this.done), current = Math.min(step, this.count);
      if (step <= this.count) this.each(this.end(current - 1), this.end(current), (m, n) => { begun[m * this.columns + n]++; });
      value = (r, c) => begun[r * this.columns + c] || "";
    }
    if (!panels) {
      const [height, width] = transposed[tensor] ? [this.columns, this.rows] : [this.rows, this.columns];
      const at = (r, c) => (transposed[tensor] ? value(c, r) : value(r, c));
      return Array.from({ length: height }, (_, r) => Array.from({ length: width }, (_, c) => at(r, c)));
    }
    return filled(this.composed(value, () => "", () => "", ""));
  }

  // The edge around the tiles of the first programs, as a path. One line per straight stretch: Plotly parses a path number
  // by number, again in each drawing.
  outline(programs) {
    const inside = new Set(), { columns } = this, lines = [];
    this.each(0, Math.min(programs, this.total), (m, n) => inside.add(m * columns + n));
    const has = (m, n) => n >= 0 && n < columns && inside.has(m * columns + n);
    for (const place of inside) {
      const m = Math.floor(place / columns), n = place - m * columns;
      for (const [down, right] of [[-1, 0], [1, 0], [0, -1], [0, 1]]) {
        const along = Math.abs(right), across = Math.abs(down);
        const isEdge = (i, j) => has(i, j) && !has(i + down, j + right);
        if (!isEdge(m, n) || isEdge(m - along, n - across)) continue;
        let length = 1;
        while (isEdge(m + length * along, n + length * across)) length++;
        const y = m + Math.max(down, 0), x = n + Math.max(right, 0);
        lines.push(`M${x},${y}L${x + length * across},${y + length * along}`);
      }
    }
    return lines.join("");
  }

  // Blocks that the first programs load together.
  loadedBy(programs) {
    const { slices, depths } = this.meta, seen = [new Set(), new Set()];
    let blocks = 0;
    this.each(0, Math.min(programs, this.total), (m, n, slice) => {
      [m, n].forEach((piece, side) => {
        const at = piece * slices + slice;
        if (!seen[side].has(at)) { seen[side].add(at); blocks += depths[slice]; }
      });
    });
    return blocks;
  }

  // The large number of a step, and what it counts.
  counted(step) {
    const { unit, first, name } = this.meta;
    if (!step) {
      const programs = first || this.total, count = programs === 1 ? unit : several(programs, unit);
      const which = first ? "the first" : programs === 1 ? "the only" : "all";
      return [this.loadedBy(programs), `blocks for ${which} ${count}`];
    }
    const current = Math.min(step, this.count);
    if (!this.tiles) return [this.loaded, `blocks loaded by ${several(current, unit)}`];
    const mebibytes = (this.usedBytes / 2 ** 20).toLocaleString("en", { maximumSignificantDigits: 3 });
    return [this.used, `blocks loaded by ${name} ${written(current)}: ${this.busy(current)}, ${mebibytes} MiB`];
  }

  busy(current) {
    const { unit, slots } = this.meta, tiles = this.tiles ? this.tiles[current - 1] : 1;
    return tiles === slots ? several(tiles, unit) : `${written(tiles)} of ${several(slots, unit)}`;
  }
}

// A picture of a launch in one order or two: the live plot's own, or its twin.
class Picture {
  constructor(plot, meta) {
    this.plot = plot;
    this.meta = meta;
    this.handles = meta.handles ?? {}; // Plotly removes empty objects from what it is given
    this.orders = meta.orders.map((order) => new Order(meta, order));
    this.longest = Math.max(0, ...this.orders.map((order) => order.count));
  }

  // Lays a step, or at 0 the whole launch, over what is about to be drawn.
  lay(detail, step) {
    this.step = step;
    const { meta, orders } = this, { data, layout } = detail;
    const of = (i) => orders[meta.panels ? i : 0];
    detail.data = data.map((trace, i) => {
      const shown = { ...trace, hovertext: of(i).texts(i) };
      if (step) shown.z = meta.panels ? of(i).z(step) : laidOut(of(i).z(step), meta.transposed[i]);
      if (trace.texttemplate) shown.text = of(i).numbers(i, step);
      return shown;
    });
    const toCome = given.to_come[document.body.classList.contains("dark") ? "dark" : "light"];
    const scale = [[0, toCome], ...given.scale.slice(1)];
    const coloraxis = step ? { cmin: 0, cmax: 3, colorscale: scale, showscale: false } : layout.coloraxis;
    detail.layout = { ...layout, coloraxis, ...this.stacked(layout) };
    if (!meta.first || !meta.panels) return;
    // Black in white, to be seen on every colour of the map.
    const lines = [{ width: 6, color: "#ffffff" }, { width: 2.5, color: "#111827" }];
    detail.layout.shapes = orders.flatMap((order, i) => lines.map((line) => ({
      type: "path", path: (order.edge ??= order.outline(meta.first)), xref: `x${i || ""}`.replace("x1", "x2"), yref: i ? "y2" : "y", line,
    })));
  }

  // On a narrow screen, if it is high enough, the two halves stand one above the other.
  get fitsStacked() {
    return this.plot.clientWidth < Math.min(560, 1.5 * this.plot.clientHeight);
  }

  stacked(layout) {
    this.isStacked = this.fitsStacked;
    if (!this.isStacked || !layout.xaxis2) return {};
    const whole = [0, 1];
    return {
      xaxis: { ...layout.xaxis, domain: whole }, yaxis: { ...layout.yaxis, domain: [0.56, 1] },
      xaxis2: { ...layout.xaxis2, domain: whole }, yaxis2: { ...layout.yaxis2, domain: [0, 0.44] },
    };
  }

  // What the bars beside the large numbers are as long as: the most blocks of any order.
  get scale() {
    const { meta: { first, bound }, orders, step } = this;
    if (step && orders[0].tiles) return Math.max(...orders.map(({ most }) => most));
    const programs = first && step <= (bound || Infinity) ? first : orders[0].total;
    return Math.max(...orders.map((order) => (order.whole ??= {})[programs] ??= order.loadedBy(programs)));
  }

  // Of each order its title, the large number of the step that was laid, and what that counts.
  counts() {
    return this.meta.panels ? this.orders.map((order) => [order.title, ...order.counted(this.step)]) : [];
  }
}

function filled({ height, wide, value }) {
  return Array.from({ length: height }, (_, r) => Array.from({ length: wide }, (_column, c) => value(r, c)));
}

function laidOut(grid, transposed) {
  if (!transposed) return grid;
  return Array.from(grid[0], (_, c) => grid.map((row) => row[c]));
}
