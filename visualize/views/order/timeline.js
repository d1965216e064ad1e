// The tooltip of the timeline: the program of the bar under the pointer. Plotly would look for the nearest corner.
import { listen, make, setBox } from "../../web/assets/dom.js";

const tip = make("div", { class: "tip", hidden: "" });
let plot = null;
let chart = null; // `layout.meta.gantt` (see `gantt_figure`)
let bars = [];

function read({ target, detail: { data, layout } }) {
  if (!layout.meta?.gantt) return;
  [plot, chart] = [target, layout.meta.gantt];
  bars = data.flatMap(({ x, y, customdata }) => Array.from(customdata[0], (_, i) => ({
    about: customdata.map((row) => row[i]), start: x[5 * i], end: x[5 * i + 1], top: y[5 * i], bottom: y[5 * i + 2],
  })));
  if (!tip.isConnected) plot.after(tip);
}

function point({ target, clientX, clientY }) {
  const full = plot?._fullLayout, isInside = plot?.contains(target) && full?.xaxis?._length;
  const box = plot?.getBoundingClientRect(), left = clientX - box?.left, top = clientY - box?.top;
  const [x, y] = isInside ? [full.xaxis.p2d(left - full.xaxis._offset), full.yaxis.p2d(top - full.yaxis._offset)] : [];
  const bar = bars.find(({ start, end, ...sides }) => start <= x && x <= end && sides.top <= y && y <= sides.bottom);
  tip.hidden = !bar;
  if (!bar) return;
  const [pid, m, n, slice, wave, tiles] = bar.about;
  const what = `${tiles > 1 ? `${tiles} tiles, the first` : "tile"} (${m}, ${n})${chart.slices > 1 ? `, slice ${slice}` : ""}`;
  const sm = Math.round((bar.top + bar.bottom) / 2), times = `${bar.start.toFixed(2)} to ${bar.end.toFixed(2)} µs`;
  tip.innerText = [`pid ${pid}: ${what}`, `SM ${sm}, ideal wave ${wave + 1} of ${chart.waves}`, times].join("\n");
  setBox(tip, { left: left > box.width / 2 ? left - tip.offsetWidth - 12 : left + 12, top: top + 12 });
}

listen("paint", read);
document.addEventListener("mousemove", point);
