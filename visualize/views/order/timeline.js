// The tooltip of the timeline: the program of the bar under the pointer. Plotly would look for the nearest corner.
import { listen, make, setBox } from "../../web/assets/dom.js";

const tip = make("div", { class: "tip", hidden: "" });
let plot = null;
// `layout.meta.gantt` (see `gantt_figure`).
let chart = null;
let bars = [];

function read({ target, detail: { data, layout } }) {
  if (!layout.meta?.gantt) return;
  plot = target;
  chart = layout.meta.gantt;
  bars = data.flatMap(({ x, y, customdata }) => Array.from(customdata[0], (_, i) => ({
    about: customdata.map((row) => row[i]), start: x[5 * i], end: x[5 * i + 1], top: y[5 * i], bottom: y[5 * i + 2],
  })));
  plot.after(tip);
  plot.addEventListener("mousemove", point);
  plot.addEventListener("mouseleave", hide);
}

function hide() {
  tip.hidden = true;
}

function point(event) {
  if (!plot._fullLayout) return;
  const { xaxis, yaxis } = plot._fullLayout, box = plot.getBoundingClientRect(), left = event.x - box.left, top = event.y - box.top;
  const x = xaxis.p2d(left - xaxis._offset), y = yaxis.p2d(top - yaxis._offset);
  const bar = bars.find((each) => each.start <= x && x <= each.end && each.top <= y && y <= each.bottom);
  tip.hidden = !bar;
  if (!bar) return;
  const [pid, m, n, slice, wave, tiles] = bar.about;
  const what = `${tiles > 1 ? `${tiles} tiles, the first` : "tile"} (${m}, ${n})${chart.slices > 1 ? `, slice ${slice}` : ""}`;
  const sm = Math.round((bar.top + bar.bottom) / 2), times = `${bar.start.toFixed(2)} to ${bar.end.toFixed(2)} µs`;
  tip.innerText = [`pid ${pid}: ${what}`, `SM ${sm}, ideal wave ${wave + 1} of ${chart.waves}`, times].join("\n");
  setBox(tip, { left: left > box.width / 2 ? left - tip.offsetWidth - 12 : left + 12, top: top + 12 });
}

listen("paint", read);
