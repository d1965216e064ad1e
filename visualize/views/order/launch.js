// A launch that a picture carries (`layout.meta`, see map_figure.py), and any step of it.
import { given, isDark } from "../../web/assets/dom.js";
import { counted, written } from "../../web/assets/numbers.js";

// A launch in one order. An entry is a tile, in the order of their computation. A piece is the part of a panel in one
// slice of K; pieces are numbered as `pid × slices + slice`, those of A's rows before those of B's columns.
export class Order {
  constructor(meta, order) {
    const { extents: [rows, columns], slices } = meta;
    Object.assign(this, order, { meta, rows, columns, slices, total: rows * columns * slices });
    // The first entry that computes each tile, and that reads each piece.
    const firstOfTile = this.firstOfTile = new Uint32Array(rows * columns);
    const firstOfPiece = this.firstOfPiece = new Uint32Array((rows + columns) * slices).fill(this.total);
    for (let entry = this.total - 1; entry >= 0; entry--) {
      const { m, n, rowPiece, columnPiece } = this.at(entry);
      firstOfTile[m * columns + n] = firstOfPiece[rowPiece] = firstOfPiece[columnPiece] = entry;
    }
    this.path = this.outline(meta.first);
  }

  // The tile of an entry, and the pieces that it reads.
  at(entry) {
    const { rows, columns, slices } = this, place = this.places?.[entry] ?? entry, row = Math.floor(place / columns);
    const n = place % columns, slice = Math.floor(row / rows), m = row % rows;
    return { m, n, rowPiece: m * slices + slice, columnPiece: (rows + n) * slices + slice };
  }

  // The pieces that the entries from `from` to `to` − 1 read.
  reads(from, to) {
    const pieces = new Set();
    for (let entry = from; entry < to; entry++) {
      const { rowPiece, columnPiece } = this.at(entry);
      pieces.add(rowPiece).add(columnPiece);
    }
    return pieces;
  }

  // The first entry after a number of steps.
  end(steps) {
    const done = Math.min(steps, this.count);
    return this.ends ? this.ends[done] : done;
  }

  program(entry) {
    return this.programs?.[entry] ?? entry;
  }

  describe(entry) {
    if (this.ends) return `${this.meta.name} ${this.ends.findLastIndex((start) => start <= entry) + 1}`;
    return this.programs ? `tile ${entry + 1}` : `wave ${Math.floor(entry / this.meta.resident) + 1}`;
  }

  // The picture's grid (see map_figure.py) of values of C's tiles, and of A's and B's pieces by slice.
  compose(tile, a, b, nothing) {
    const { slice_of: slices, down, across } = this.meta.grid;
    const value = (r, c) => {
      const row = r - down.lead, column = c - across.lead;
      if (row >= 0 && column >= 0) return tile(row, column);
      if (row >= 0 && column < -across.gap) return a(row, slices[Math.floor(c / across.repeat)]);
      if (column >= 0 && row < -down.gap) return b(slices[Math.floor(r / down.repeat)], column);
      return nothing;
    };
    const columns = across.lead + across.cells;
    return Array.from({ length: down.lead + down.cells }, (_, r) => Array.from({ length: columns }, (_column, c) => value(r, c)));
  }

  // The values of all cells during a step: the share that is done or loaded, 0 to 1; 2 for reused blocks, 3 for new ones.
  frame(step) {
    const { rows, columns, slices, meta: { grid: { down, across } } } = this, { stride } = down;
    const from = this.end(step - 1), to = this.end(step), used = this.reads(from, to), running = new Set();
    const done = new Uint32Array(down.cells * across.cells);
    for (let entry = 0; entry < to; entry++) {
      const { m, n } = this.at(entry), cell = Math.floor(m / stride) * across.cells + Math.floor(n / stride);
      if (entry < from) done[cell]++;
      else running.add(cell);
    }

    const size = (cell, tiles) => Math.min(stride, tiles - cell * stride);
    const tile = (r, c) => {
      const cell = r * across.cells + c;
      return running.has(cell) ? 3 : done[cell] / (size(r, rows) * size(c, columns) * slices);
    };
    const piece = (offset, cell, tiles, slice) => {
      const first = offset + cell * stride, count = size(cell, tiles);
      let loaded = 0, current = 0;
      for (let pid = first; pid < first + count; pid++) {
        const isLoaded = this.firstOfPiece[pid * slices + slice] < from;
        loaded += isLoaded;
        if (used.has(pid * slices + slice)) current = Math.max(current, isLoaded ? 2 : 3);
      }
      return current || loaded / count;
    };
    return this.compose(tile, (r, slice) => piece(0, r, rows, slice), (slice, c) => piece(rows, c, columns, slice), NaN);
  }

  // Texts in the cells of a small picture: the program or, during a step, how many slices have started.
  numbers(step) {
    const started = new Map(), showsSlices = step && this.slices > 1;
    for (let entry = 0; showsSlices && entry < this.end(step); entry++) {
      const { m, n } = this.at(entry), tile = m * this.columns + n;
      started.set(tile, (started.get(tile) ?? 0) + 1);
    }
    const value = (tile) => (showsSlices ? started.get(tile) ?? "" : written(this.program(this.firstOfTile[tile])));
    return this.compose((m, n) => value(m * this.columns + n), () => "", () => "", "");
  }

  // The large number of a step, or of the compared programs, and what it counts.
  load(step) {
    const { meta: { name, unit, first, slots }, total } = this, current = Math.min(step, this.count), tiles = this.end(current) - this.end(current - 1);
    const all = total === 1 ? `the only ${unit}` : `all ${counted(total, unit)}`, end = step ? current : first;
    const detail = step && this.ends ? `: ${tiles === slots ? "" : `${written(tiles)} of `}${counted(slots, unit)}` : "";
    const compared = `the first ${end === 1 ? unit : counted(end, unit)}`;
    const programs = !end ? all : step && this.ends ? `${name} ${written(end)}` : compared;
    return { blocks: this.blocks[current], what: `for ${programs}`, detail };
  }

  // The edges around the tiles of the first entries, as a path.
  outline(first) {
    const tiles = Array.from({ length: first }, (_, entry) => this.at(entry)), inside = new Set(tiles.map(({ m, n }) => `${m} ${n}`));
    const edge = (m, n, x, y, right) => (inside.has(`${m} ${n}`) ? "" : `M${x},${y}L${x + right},${y + 1 - right}`);
    const edges = ({ m, n }) => edge(m - 1, n, n, m, 1) + edge(m + 1, n, n, m + 1, 1) + edge(m, n - 1, n, m, 0) + edge(m, n + 1, n + 1, m, 0);
    return tiles.map(edges).join("");
  }
}

// Smallest legible font size of a number, in pixels.
const LEGIBLE = 7;

// A picture of a launch in one order or two.
export class Picture {
  constructor(meta) {
    const orders = meta.orders.map((order) => new Order(meta, order)), longest = Math.max(0, ...orders.map((order) => order.count));
    // Plotly removes empty objects.
    Object.assign(this, { meta, orders, longest, step: 0, handles: meta.handles ?? {} });
  }

  // The order that a map shows: a map per order or, without panels, per tensor.
  orderOf(map) {
    return this.orders[this.meta.panels ? map : 0];
  }

  isTransposed(map) {
    return !this.meta.panels && this.meta.transposed[map];
  }

  // The first program that computes a tile, and the blocks of A and B that it loads, with the first entry that loads them.
  reads({ map, m, n }) {
    const order = this.orderOf(map), entry = order.firstOfTile[m * order.columns + n];
    const panels = [...order.reads(entry, entry + 1)].map((piece) => ({ blocks: this.meta.depths[piece % order.slices], first: order.firstOfPiece[piece] }));
    return { order, entry, panels };
  }

  // The lines of a point's tip.
  words(point) {
    const { m, n, k } = point, { panels, slices, grid, tensors } = this.meta;
    const pid = (order, entry) => `pid ${written(order.program(entry))}`;
    if (k !== undefined) {
      const order = this.orderOf(point.map), slice = grid.slice_of[k], first = order.firstOfPiece[(m ?? order.rows + n) * slices + slice];
      const along = grid.blocks ? `, block ${k} of K` : slices > 1 ? `, slice ${slice}` : "";
      const name = m === undefined ? `${panels[1]}: pid_n ${n}` : `${panels[0]}: pid_m ${m}`;
      return [name + along, `First loaded by ${pid(order, first)}, in ${order.describe(first)}.`];
    }
    const { order, entry, panels: reads } = this.reads(point);
    const sides = ["BLOCK_M", "BLOCK_N"].flatMap((name) => this.handles[name]?.value ?? []);
    const size = sides.length === 2 ? `, ${sides.join(" × ")} elements of ${tensors.at(-1)}` : "";
    const lines = [`${pid(order, entry)} computes this tile${size}.`, `pid_m ${m}, pid_n ${n}: ${order.describe(entry)}`];
    if (!panels) return lines;
    const loaded = reads.map(({ blocks, first }, side) => {
      const by = first === entry ? "loaded now" : `already loaded by ${pid(order, first)}`;
      return `${side ? `Column ${n}` : `Row ${m}`} of ${panels[side]}, ${counted(blocks, "block")}: ${by}.`;
    });
    if (slices > 1) lines.push(`It computes only the first of the tile’s ${slices} slices of K.`);
    return [...lines, ...loaded];
  }

  // Lays a step, or at 0 the whole launch, over a figure that is about to be drawn.
  lay(detail, step) {
    this.step = step;
    const { meta, orders } = this, { data, layout } = detail;
    const turn = (grid, map) => (this.isTransposed(map) ? grid[0].map((_, c) => grid.map((row) => row[c])) : grid);
    detail.data = data.map((trace, map) => {
      const next = { ...trace }, order = this.orderOf(map);
      if (step) next.z = turn(order.frame(step), map);
      if (trace.texttemplate) {
        const size = Math.min(trace.textfont.size, this.numberSize(layout, map, String(order.total).length));
        if (size < LEGIBLE) next.texttemplate = "";
        else Object.assign(next, { text: turn(order.numbers(step), map), textfont: { size } });
      }
      return next;
    });
    const colorscale = [[0, given.to_come[isDark() ? "dark" : "light"]], ...given.scale.slice(1)];
    detail.layout = { ...layout, ...(step && { coloraxis: { cmin: 0, cmax: 3, colorscale, showscale: false } }), ...this.stacked(layout) };
    if (!meta.first || !meta.panels) return;
    // Black in white, to be seen on every colour of the map.
    const isSmall = data[0].texttemplate && this.numberSize(layout, 0, 1) < 13;
    const lines = [{ width: isSmall ? 3 : 6, color: "#ffffff" }, { width: isSmall ? 1.5 : 2.5, color: "#111827" }];
    detail.layout.shapes = orders.flatMap(({ path }, map) => {
      const axis = map ? 2 : "";
      return lines.map((line) => ({ type: "path", path, xref: `x${axis}`, yref: `y${axis}`, line }));
    });
  }

  // On a narrow screen, if it is high enough, the two halves stand one above the other.
  isStacked({ xaxis2, width, height }) {
    return xaxis2 && width < Math.min(560, 1.5 * height);
  }

  stacked(layout) {
    const domains = this.isStacked(layout) ? { xaxis: [0, 1], yaxis: [0.56, 1], xaxis2: [0, 1], yaxis2: [0, 0.44] } : {};
    return Object.fromEntries(Object.entries(domains).map(([name, domain]) => [name, { ...layout[name], domain }]));
  }

  // Pixels of a number that fits into a cell: about 85 % of the picture's height and width are cells.
  numberSize(layout, map, digits) {
    const [y, x] = ["yaxis", "xaxis"].map((axis) => layout[map ? `${axis}2` : axis]), isStacked = this.isStacked(layout);
    const cell = ({ range: [from, to] }, pixels) => 0.85 * pixels / Math.abs(to - from);
    const height = cell(y, layout.height * (isStacked ? 0.44 : 1)), width = cell(x, layout.width * (isStacked ? 1 : x.domain[1] - x.domain[0]));
    return Math.min(0.75 * height, 1.4 * width / digits);
  }

  // The number of blocks of a full bar: the most of any order.
  get scale() {
    const { meta: { first, bound, panels }, step } = this, isWhole = !step || (first && step <= (bound || Infinity));
    const most = ({ blocks, ends }) => (step && ends ? Math.max(...blocks.subarray(1)) : blocks.at(isWhole ? 0 : -1));
    return panels ? Math.max(...this.orders.map(most)) : 0;
  }
}
