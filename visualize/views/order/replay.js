// The clock of a launch (see timeline.py): tiles and programs at any time, over the plots whose figures carry them.
const root = element.querySelector(".clock");
const play = root.querySelector(".play");
const scrub = root.querySelector("input");
const said = root.querySelector("output");
const pace = root.querySelector("select");
const cursor = Object.assign(document.createElement("div"), { className: "cursor" });
const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
const maps = new Map(); // plot → its moments
const LATE = 0.7; // the share of the launch at which it opens: late enough that a tail shows
let bars = [];
let gantt = null;
let chart = null; // what the server says of it
let shown = null; // the uirevision of what is shown: the time starts anew with another launch
let span = 0;
let now = 0; // ns
let playing = false;

const number = (value) => value.toLocaleString("en");
const counted = (value, word) => `${number(value)} ${word}${value === 1 ? "" : "s"}`;
const microseconds = (ns) => `${(ns / 1000).toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} µs`;

// z of a map at a time: the share of a cell's tiles that is done, or 2 where one is running.
function moment({ cell, columns, begun_ns, done_ns }, rows) {
  const done = new Float32Array(rows * columns), all = new Float32Array(rows * columns), running = new Set();
  let count = 0, begun = 0;
  for (let i = 0; i < cell.length; i++) {
    all[cell[i]]++;
    if (done_ns[i] <= now) { done[cell[i]]++; count++; }
    else if (begun_ns[i] <= now) { running.add(cell[i]); begun++; }
  }
  const value = (i) => (running.has(i) ? 2 : done[i] / (all[i] || 1));
  const row = (r) => Float32Array.from({ length: columns }, (_, c) => value(r * columns + c));
  return { z: Array.from({ length: rows }, (_, r) => row(r)), done: count, begun };
}

// A plot is about to be drawn: lay the time over it, or take note of the programs.
function lay(event) {
  const { layout, data } = event.detail, { moments, gantt: programs } = layout.meta ?? {};
  if (!moments && !programs) return;
  if (shown !== layout.uirevision) {
    shown = layout.uirevision;
    stop();
    now = null;
  }
  if (programs) return chartOf(event.target, data, programs);
  maps.set(event.target, moments);
  if (now === null) now = moments.done_ns.reduce((most, ns) => Math.max(most, ns), 0) * LATE;
  const { z, done, begun } = moment(moments, data[0].z.length);
  event.detail.data = [{ ...data[0], z }];
  const { name, clock, unit } = moments;
  const step = clock && Math.min(clock.filter((begin) => begin <= now).length, clock.length - 1);
  const which = clock ? `${name} ${number(step)} of ${number(clock.length - 1)}` : `${unit}s`;
  const text = `${which}: ${number(done)} done, ${number(begun)} running`;
  event.detail.layout = { ...layout, annotations: [{ ...layout.annotations[0], text }] };
}

function chartOf(plot, data, programs) {
  [gantt, chart, span] = [plot, programs, programs.span_ns];
  root.hidden = false;
  if (now === null) now = span * LATE;
  bars = data.flatMap(({ x, y, customdata }) =>
    Array.from(customdata[0], (_, i) => ({ told: customdata.map((row) => row[i]), start: x[5 * i], end: x[5 * i + 1], top: y[5 * i], bottom: y[5 * i + 2] })));
  scrub.max = span;
  scrub.step = Math.max(1, Math.round(span / 400));
  tell();
  requestAnimationFrame(() => {
    if (!cursor.isConnected) {
      plot.parentNode.classList.add("with-cursor");
      plot.parentNode.append(cursor, tip);
    }
    plot.removeAllListeners?.("plotly_afterplot");
    plot.on?.("plotly_afterplot", place);
    place();
  });
}

function place() {
  const full = gantt?._fullLayout, axis = full?.xaxis;
  if (!axis?._length) return;
  const x = axis.d2p(now / 1000);
  cursor.hidden = x < -1 || x > axis._length + 1;
  Object.assign(cursor.style, { left: `${axis._offset + x}px`, top: `${full._size.t}px`, height: `${full._size.h}px` });
}

function tell() {
  const t = now / 1000;
  const running = bars.filter((bar) => bar.start <= t && t < bar.end);
  const sms = new Set(running.map(({ top, bottom }) => Math.round((top + bottom) / 2)));
  const text = `${microseconds(now)} of ${microseconds(span)}`;
  scrub.value = now;
  said.textContent = `${text}: ${counted(running.length, "program")} on ${counted(sms.size, "SM")}`;
  scrub.setAttribute("aria-valuetext", said.textContent);
  root.dataset.now = Math.round(now);
}

async function show(time) {
  now = Math.max(0, Math.min(time, span));
  tell();
  place();
  for (const plot of maps.keys()) if (!plot.isConnected) maps.delete(plot);
  await Promise.all([...maps.keys()].map((plot) => plot.repaint()));
}

function stop() {
  playing = false;
  play.textContent = "▶ Replay";
  said.setAttribute("aria-live", "polite");
}

async function start() {
  playing = true;
  play.textContent = "❚❚ Pause";
  said.setAttribute("aria-live", "off");
  let last = performance.now();
  if (now >= span) now = 0;
  while (playing && now < span) {
    await new Promise(requestAnimationFrame);
    if (!playing) return;
    const time = performance.now(), passed = (time - last) / 1000;
    last = time;
    await show(now + passed / Number(pace.value) * span);
  }
  if (playing) stop();
}

// What the bar under the pointer is: Plotly would look for the nearest corner.
function point(event) {
  const full = gantt?._fullLayout;
  if (!full?.xaxis?._length) return;
  const box = gantt.getBoundingClientRect();
  const left = event.clientX - box.left, top = event.clientY - box.top;
  const x = full.xaxis.p2d(left - full.xaxis._offset), y = full.yaxis.p2d(top - full.yaxis._offset);
  const bar = bars.find((one) => one.start <= x && x <= one.end && one.top <= y && y <= one.bottom);
  tip.hidden = !bar;
  if (!bar) return;
  const [pid, m, n, slice, wave, tiles] = bar.told;
  const what = `${tiles > 1 ? `${tiles} tiles, the first` : "tile"} (${m}, ${n})${chart.slices > 1 ? `, slice ${slice}` : ""}`;
  const sm = Math.round((bar.top + bar.bottom) / 2);
  const lines = [`pid ${pid}: ${what}`, `SM ${sm}, ideal wave ${wave + 1} of ${chart.waves}`, `${bar.start.toFixed(2)} to ${bar.end.toFixed(2)} µs`];
  tip.innerText = lines.join("\n");
  const side = left > box.width / 2 ? { left: "auto", right: `${box.width - left + 12}px` } : { left: `${left + 12}px`, right: "auto" };
  Object.assign(tip.style, side, { top: `${top + 12}px` });
}

function toggle() {
  if (playing) stop();
  else if (span) start();
}

// The page's keys are the clock's where no other player is in view.
const isAlone = () => !root.hidden && root.offsetParent !== null && !document.querySelector("#player .player")?.offsetParent;

play.addEventListener("click", toggle);
document.addEventListener("tilescope:play", () => { if (isAlone()) toggle(); });
document.addEventListener("tilescope:step", ({ detail }) => { if (isAlone()) { stop(); show(now + detail.by * span / 20); } });
scrub.addEventListener("input", () => { stop(); show(Number(scrub.value)); });
document.addEventListener("tilescope:paint", lay);
document.addEventListener("tilescope:cleared", ({ target }) => {
  if (target !== gantt) return;
  stop();
  root.hidden = true;
});
document.addEventListener("mousemove", (event) => {
  if (gantt?.contains(event.target)) point(event);
  else tip.hidden = true;
});
document.querySelectorAll(".live-plot").forEach((plot) => plot.repaint?.());
