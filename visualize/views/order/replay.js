// The replay of a launch in measured time (see view.py): tiles and programs at any time, over the plots whose figures
// carry them.
import { Playback } from "./playback.js";
import { listen, make, setBox } from "../../web/assets/dom.js";
import { counted, written } from "../../web/assets/numbers.js";

// A map at a time: the share of a cell's tiles that is done, or 2 where one is running.
export function drawMoment(moments, now, trace, layout) {
  const { cell, columns, begun_ns: begun, done_ns: done, name, clock, unit } = moments;
  const [all, finished, running] = Array.from({ length: 3 }, () => new Uint32Array(trace.z.length * columns));
  for (let tile = 0; tile < cell.length; tile++) {
    all[cell[tile]]++;
    if (done[tile] <= now) finished[cell[tile]]++;
    else if (begun[tile] <= now) running[cell[tile]]++;
  }
  const value = (at) => (running[at] ? 2 : finished[at] / (all[at] || 1));
  const z = trace.z.map((_, r) => Float32Array.from({ length: columns }, (_row, c) => value(r * columns + c)));
  const sum = (counts) => written(counts.reduce((total, count) => total + count, 0));
  const step = clock && Math.min(clock.filter((begin) => begin <= now).length, clock.length - 1);
  const what = clock ? `${name} ${written(step)} of ${written(clock.length - 1)}` : `${unit}s`;
  const annotations = [{ ...layout.annotations[0], text: `${what}: ${sum(finished)} done, ${sum(running)} running` }];
  return { data: [{ ...trace, z }], layout: { ...layout, annotations } };
}

export default function mountReplay(element) {
  const root = element.querySelector(".clock");
  const scrub = root.querySelector("input");
  const pace = root.querySelector("select");
  const cursor = make("div", { class: "cursor" });
  const tip = make("div", { class: "tip", hidden: "" });
  const maps = new Set(); // plots
  const LATE = 0.7; // the share of the launch at which it opens: late enough that a tail shows
  let bars = [];
  let gantt = null;
  let chart = { span_ns: 0 }; // `layout.meta.gantt`
  let revision = null; // the figures' uirevision: another launch opens at LATE again
  let now = 0; // ns

  const microseconds = (ns) => `${(ns / 1000).toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} µs`;
  const smOf = ({ top, bottom }) => Math.round((top + bottom) / 2);

  // A plot is about to be drawn: lay the time over a map, or read the programs of the chart.
  function lay({ target, detail }) {
    const { layout, data } = detail, { moments, gantt: programs } = layout.meta ?? {};
    if (!moments && !programs) return;
    const span = programs?.span_ns ?? moments.span_ns;
    if (revision !== layout.uirevision) {
      revision = layout.uirevision;
      playback.stop();
      now = span * LATE;
    }
    if (programs) readChart(target, data, programs);
    else {
      maps.add(target);
      Object.assign(detail, drawMoment(moments, now, data[0], layout));
    }
  }

  function readChart(plot, data, programs) {
    [gantt, chart] = [plot, programs];
    root.hidden = false;
    bars = data.flatMap(({ x, y, customdata }) => Array.from(customdata[0], (_, i) => ({
      about: customdata.map((row) => row[i]), start: x[5 * i], end: x[5 * i + 1], top: y[5 * i], bottom: y[5 * i + 2],
    })));
    scrub.max = chart.span_ns;
    scrub.step = Math.max(1, Math.round(chart.span_ns / 400));
    if (!cursor.isConnected) plot.after(cursor, tip);
    tell();
  }

  function place() {
    const full = gantt?._fullLayout, axis = full?.xaxis;
    if (!axis?._length) return;
    const x = axis.d2p(now / 1000);
    cursor.hidden = x < -1 || x > axis._length + 1;
    setBox(cursor, { left: axis._offset + x, top: full._size.t, height: full._size.h });
  }

  function tell() {
    const running = bars.filter(({ start, end }) => start <= now / 1000 && now / 1000 < end);
    const programs = `${counted(running.length, "program")} on ${counted(new Set(running.map(smOf)).size, "SM")}`;
    scrub.value = now;
    playback.output.textContent = `${microseconds(now)} of ${microseconds(chart.span_ns)}: ${programs}`;
    scrub.setAttribute("aria-valuetext", playback.output.textContent);
    root.dataset.now = Math.round(now);
  }

  async function show(time) {
    now = Math.max(0, Math.min(time, chart.span_ns));
    tell();
    place();
    await Promise.all([...maps].map((plot) => plot.repaint()));
  }

  const playback = new Playback(root, "Replay", {
    show,
    after: (by) => now + by * chart.span_ns / 20,
    begin: () => show(now < chart.span_ns ? now : 0),
    async advance(seconds) {
      await show(now + seconds / Number(pace.value) * chart.span_ns);
      return now < chart.span_ns;
    },
  });

  // Show the program of the bar under the pointer: Plotly would look for the nearest corner.
  function point({ target, clientX, clientY }) {
    const full = gantt?._fullLayout, isInside = gantt?.contains(target) && full?.xaxis?._length;
    const box = gantt?.getBoundingClientRect(), left = clientX - box?.left, top = clientY - box?.top;
    const [x, y] = isInside ? [full.xaxis.p2d(left - full.xaxis._offset), full.yaxis.p2d(top - full.yaxis._offset)] : [];
    const bar = bars.find(({ start, end, ...sides }) => start <= x && x <= end && sides.top <= y && y <= sides.bottom);
    tip.hidden = !bar;
    if (!bar) return;
    const [pid, m, n, slice, wave, tiles] = bar.about;
    const what = `${tiles > 1 ? `${tiles} tiles, the first` : "tile"} (${m}, ${n})${chart.slices > 1 ? `, slice ${slice}` : ""}`;
    const times = `${bar.start.toFixed(2)} to ${bar.end.toFixed(2)} µs`;
    tip.innerText = [`pid ${pid}: ${what}`, `SM ${smOf(bar)}, ideal wave ${wave + 1} of ${chart.waves}`, times].join("\n");
    setBox(tip, { left: left > box.width / 2 ? left - tip.offsetWidth - 12 : left + 12, top: top + 12 });
  }

  listen("paint", lay);
  listen("drawn", ({ target }) => { if (target === gantt) place(); });
  listen("save", ({ target, detail }) => {
    if (maps.has(target)) detail.legend = root.querySelector(".legend");
  });
  listen("cleared", ({ target }) => {
    if (target !== gantt) return;
    playback.stop();
    root.hidden = true;
  });
  document.addEventListener("mousemove", point);
}
