// The player (see player.py): draws any step of a launch over the live plots whose figures carry one (`layout.meta`).
const root = element.querySelector(".player");
const play = root.querySelector(".play");
const scrub = root.querySelector("input");
const said = root.querySelector("output");
const speed = root.querySelector("select");
const sms = root.querySelector("canvas");
const launches = new Map(); // plot → what is drawn there
let step = 0; // from 1; 0 is the whole launch
let told = null; // the step that the page's address holds
let playing = false;
let room = 0; // the width of the picture of the SMs; to ask for it would lay out the page anew

// One order: how far along each cell and each piece of a panel is after the first so many steps.
class Launch {
  constructor(meta) {
    Object.assign(this, meta);
    [this.rows, this.columns] = meta.extents;
    this.count = meta.tiles.length;
    this.ends = new Float64Array(this.count + 1);
    for (let i = 0; i < this.count; i++) this.ends[i + 1] = this.ends[i] + meta.tiles[i];
    this.down = Math.ceil(this.rows / meta.stride);
    this.across = Math.ceil(this.columns / meta.stride);
    this.reset();
  }

  reset() {
    this.finished = 0;
    this.done = new Uint32Array(this.down * this.across);
    this.seen = { a: new Uint8Array(this.rows * this.slices), b: new Uint8Array(this.columns * this.slices) };
    this.touched = { a: new Uint32Array(this.down * this.slices), b: new Uint32Array(this.across * this.slices) };
  }

  // Calls visit(pid_m, pid_n, slice) for the tiles of steps `from` to `to`, the last one left out.
  each(from, to, visit) {
    const plane = this.rows * this.columns;
    for (let i = this.ends[from]; i < this.ends[to]; i++) {
      const slice = Math.floor(this.places[i] / plane), rest = this.places[i] - slice * plane;
      const m = Math.floor(rest / this.columns);
      visit(m, rest - m * this.columns, slice);
    }
  }

  finish(steps) {
    if (steps < this.finished) this.reset();
    const { slices, stride, seen, touched } = this;
    this.each(this.finished, steps, (m, n, slice) => {
      const r = Math.floor(m / stride), c = Math.floor(n / stride);
      this.done[r * this.across + c]++;
      if (!seen.a[m * slices + slice]) { seen.a[m * slices + slice] = 1; touched.a[r * slices + slice]++; }
      if (!seen.b[n * slices + slice]) { seen.b[n * slices + slice] = 1; touched.b[c * slices + slice]++; }
    });
    this.finished = steps;
  }

  // z of each map during a step: the share that is done, 0 to 1, and 2 for what is under way.
  frame(number) {
    const current = Math.min(number, this.count);
    this.finish(number > this.count ? this.count : current - 1);
    const { stride, slices, down, across } = this;
    const high = (r) => Math.min(stride, this.rows - r * stride), wide = (c) => Math.min(stride, this.columns - c * stride);
    const grid = (rows, columns, value) =>
      Array.from({ length: rows }, (_, r) => Float32Array.from({ length: columns }, (_, c) => value(r, c)));
    const c = grid(down, across, (r, k) => this.done[r * across + k] / (high(r) * wide(k) * slices));
    const a = grid(down, this.held, (r, k) => this.touched.a[r * slices + k] / high(r));
    const b = grid(this.held, across, (k, n) => this.touched.b[n * slices + k] / wide(n));
    if (number <= this.count) this.each(current - 1, current, (m, n, slice) => {
      const r = Math.floor(m / stride), k = Math.floor(n / stride);
      c[r][k] = 2;
      if (slice < this.held) { a[r][slice] = 2; b[slice][k] = 2; }
    });
    if (this.panels) return [c, a, b];
    return this.transposed.map((transposed) => transposed ? grid(across, down, (n, m) => c[m][n]) : c);
  }

  // For each tile of a small map, how many of its slices have been started.
  started(number) {
    const begun = Uint32Array.from(this.done), current = Math.min(number, this.count) - 1;
    if (number <= this.count) this.each(current, current + 1, (m, n) => { begun[m * this.across + n]++; });
    return Array.from({ length: this.down }, (_, r) => Array.from(begun.subarray(r * this.across, (r + 1) * this.across)));
  }

  words(number) {
    const current = Math.min(number, this.count) - 1;
    if (number > this.count) return `done after ${this.name} ${this.count.toLocaleString("en")}`;
    const what = `${this.name} ${number.toLocaleString("en")} of ${this.count.toLocaleString("en")}: ${this.programs(current)}`;
    if (!this.panels) return what;
    const mebibytes = (this.kib[current] / 1024).toLocaleString("en", { maximumSignificantDigits: 3 });
    const unit = this.slices > 1 ? "pieces" : "panels";
    return `${what}; ${this.a[current]} + ${this.b[current]} ${unit}, ${mebibytes} MiB`;
  }

  programs(current) {
    const count = this.tiles[current];
    return `${count.toLocaleString("en")} ${this.unit}${count === 1 ? "" : "s"}`;
  }
}

function longest() {
  return Math.max(0, ...[...launches.values()].map((launch) => launch.count));
}

// A plot is about to be drawn: lay the step over it.
function lay(event) {
  const { layout, data } = event.detail, meta = layout.meta;
  if (!meta?.places) return;
  const known = launches.get(event.target);
  if (known?.meta !== meta) launches.set(event.target, Object.assign(new Launch(meta), { meta }));
  for (const plot of launches.keys()) if (!plot.isConnected) launches.delete(plot);
  if (meta.step !== told) {
    told = meta.step;
    if (!playing) step = told;
  }
  step = Math.min(step, longest());
  if (step) over(event.detail, data, layout, launches.get(event.target));
  tell();
}

function over(detail, data, layout, launch) {
  const z = launch.frame(step);
  const text = launch.slices > 1 && data[0].text ? { text: launch.started(step) } : {};
  detail.data = data.map((trace, i) => ({ ...trace, z: z[i], ...(i === 0 ? text : {}) }));
  const annotations = [{ ...layout.annotations[0], text: launch.words(step) }];
  const coloraxis = { ...layout.coloraxis, cmin: 0, cmax: 2, colorscale: given.scale, showscale: false };
  detail.layout = { ...layout, annotations, coloraxis };
}

function tell() {
  const [first] = launches.values();
  if (!first) return;
  scrub.max = longest();
  scrub.value = step;
  const text = step ? `${first.name} ${step.toLocaleString("en")} of ${longest().toLocaleString("en")}` : "whole launch";
  scrub.setAttribute("aria-valuetext", step ? first.words(step) : text);
  said.textContent = text;
  root.dataset.step = step;
  root.querySelector(".back").disabled = step === 0;
  root.querySelector(".forward").disabled = step >= longest();
  fill(first);
}

// The SMs in the step that is shown, or in the last one: how much of each is taken.
function fill(launch) {
  const shown = step ? Math.min(step, launch.count) : launch.count;
  const count = launch.tiles[shown - 1], each = launch.slots / launch.sms;
  const height = sms.height = Math.round(14 * devicePixelRatio);
  const width = sms.width = Math.max(1, Math.round(room * devicePixelRatio));
  const draw = sms.getContext("2d"), edge = (sm) => Math.round(sm * width / launch.sms);
  const gap = width / launch.sms >= 3 ? 1 : 0;
  for (let sm = 0; sm < launch.sms; sm++) {
    const held = Math.floor(count / launch.sms) + (sm < count % launch.sms ? 1 : 0);
    const taken = Math.round(height * held / each), wide = edge(sm + 1) - edge(sm) - gap;
    draw.fillStyle = given.to_come;
    draw.fillRect(edge(sm), 0, wide, height - taken);
    draw.fillStyle = given.now;
    draw.fillRect(edge(sm), height - taken, wide, taken);
  }
  const when = step ? `${launch.name} ${shown.toLocaleString("en")}` : `last ${launch.name}`;
  const text = each > 1
    ? `${when}: ${count.toLocaleString("en")} of ${launch.slots.toLocaleString("en")} SM places`
    : `${when}: ${count} of ${launch.sms} SMs busy`;
  root.querySelector(".busy").textContent = text;
  sms.setAttribute("aria-label", text);
}

// Draws both orders at a step, one after the other, and says when they have been drawn.
async function show(next) {
  step = Math.max(0, Math.min(next, longest()));
  await Promise.all([...launches.keys()].map((plot) => plot.repaint()));
}

// What is seen stands in the page's address, so that a link opens it.
function keep() {
  if (told === step) return;
  told = step;
  for (const launch of launches.values()) launch.meta.step = step;
  document.dispatchEvent(new CustomEvent("tilescope:set", { detail: { name: "step", value: step } }));
}

function stop() {
  playing = false;
  play.textContent = "▶ Play";
  said.setAttribute("aria-live", "polite");
  keep();
}

async function start() {
  playing = true;
  play.textContent = "❚❚ Pause";
  said.setAttribute("aria-live", "off");
  let from = step >= longest() ? 0 : step, begun = performance.now(), pace = speed.value;
  await show(from + 1);
  while (playing && step < longest()) {
    await new Promise(requestAnimationFrame);
    if (!playing) break;
    if (pace !== speed.value) [from, begun, pace] = [step - 1, performance.now(), speed.value];
    const rate = Number(pace) || longest() / 10;
    const next = Math.min(longest(), from + 1 + Math.floor((performance.now() - begun) / 1000 * rate));
    if (next > step) await show(next);
  }
  if (playing) stop();
}

play.addEventListener("click", () => { if (playing) stop(); else if (longest()) start(); });
for (const [name, by] of [["back", -1], ["forward", 1]]) {
  root.querySelector(`.${name}`).addEventListener("click", async () => {
    playing = false;
    await show(step + by);
    stop();
  });
}
scrub.addEventListener("input", () => { playing = false; show(Number(scrub.value)); });
scrub.addEventListener("change", stop);
document.addEventListener("tilescope:paint", lay);
new ResizeObserver(([entry]) => { room = entry.contentRect.width; tell(); }).observe(sms);
document.querySelectorAll(".live-plot").forEach((plot) => plot.repaint?.());
