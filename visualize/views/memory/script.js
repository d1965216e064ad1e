// The switch and the scrubber (see view.py): draw one of the requests that a figure carries (`layout.meta.requests`, see
// flow.py), and move the lines when the model changes.
import { emit, given, listen } from "../../web/assets/dom.js";
import { settings } from "../../web/assets/messages.js";
import { written } from "../../web/assets/numbers.js";

// Number of points per line.
const POINTS = 21;

// The lines of a request, from its nodes to the bytes that they access.
export function links({ line_bytes: width }, bytes, ends, nodes) {
  const left = nodes.x[0], x = [], y = [];
  bytes.forEach((byte, lane) => {
    const start = nodes.y[lane] ?? nodes.y[0];
    for (let i = 0; i < POINTS; i++) {
      const t = i / (POINTS - 1);
      x.push(left + (byte % width / width - left) * t);
      // The end of an inactive lane is NaN, so its line is not drawn.
      y.push(start + (ends[lane] - start) * (3 - 2 * t) * t * t);
    }
    x.push(NaN);
    y.push(NaN);
  });
  return { x, y };
}

// The colors and hover texts of the lanes. A box has one node, and no lanes.
export function laneMarks({ holder, cell_bytes: width }, bytes, marker) {
  if (holder !== "lane") return { hovertext: "the Tensor Memory Accelerator" };
  const hovertext = Array.from(bytes, (byte, lane) => `lane ${lane}${byte < 0 ? "" : `<br>${byteRange(byte, width)}`}`);
  return { hovertext, marker: { ...marker, color: Array.from(bytes, (byte) => (byte < 0 ? 0 : 1)) } };
}

const byteRange = (first, count) => `bytes ${written(first)} to ${written(first + count - 1)}`;

// The hover text of each cell of a row, which shows a line; -1 is none.
function cellTexts(requests, states, lanes, line) {
  const { cell_bytes: width, element_bytes: size, columns, holder } = requests;
  return Array.from(states, (state, cell) => {
    if (line < 0) return "";
    const what = state < 2 ? "not touched" : state === 2 ? "wasted" : `<b>${holder} ${lanes[cell] - 1}</b>`;
    const byte = line * requests.line_bytes + cell * width, element = Math.floor(byte / size);
    const from = width > size ? `${width / size} elements from ` : "", sector = Math.floor(byte / requests.sector_bytes);
    const place = `${from}row ${Math.floor(element / columns)}, column ${element % columns}`;
    return `${what}<br>${place}<br>${byteRange(byte, width)}<br>sector ${written(sector)}`;
  });
}

export default function mountScrubber(element) {
  const main = document.querySelector("#request-plot .live-plot");
  const switches = element.querySelectorAll(".switch button");
  const [back, forward, slider, output] = element.querySelector(".player").children;
  // plot → requests of its figure
  const carried = new Map();
  // The number of the request in the picture.
  let number = 0;
  // The number in the page's address.
  let saved = 0;

  // A plot is about to be drawn: put a request in its figure.
  function lay({ target, detail }) {
    const { layout } = detail, { title, yaxis } = layout, requests = layout.meta?.requests;
    if (!requests) return;
    const before = carried.get(target);
    carried.set(target, requests);
    if (target === main && before !== requests) number = saved = settings.request < 0 ? requests.shown : Math.min(settings.request, last(requests));
    // The other model for the same block: the lines move (see style.css).
    if (before?.block === requests.block && before.model !== requests.model) {
      target.classList.add("moving");
      // Longer than the transition, in ms.
      setTimeout(() => target.classList.remove("moving"), 600);
    }
    const place = placeOf(target), [memory, lines, lanes] = detail.data;
    const at = (name) => requests[name][place], bytes = at("byte"), state = at("state"), skips = at("skips");
    const hovertext = state.map((cells, row) => cellTexts(requests, cells, at("lane")[row], at("line")[row] - 1));
    detail.data = [
      { ...memory, z: state, hovertext },
      { ...lines, ...links(requests, bytes, at("end"), lanes) },
      { ...lanes, ...laneMarks(requests, bytes, lanes.marker) },
    ];
    const line = { color: layout.template.layout.font.color, width: 3 };
    const bars = skips.map((y) => ({ type: "line", x0: 0, x1: 1, y0: y, y1: y, line }));
    const text = skips.length ? `${yaxis.title.text} (bars: gaps)` : yaxis.title.text;
    detail.layout = {
      ...layout,
      title: { ...title, text: at("titles") },
      yaxis: { ...yaxis, ticktext: at("ticks"), title: { ...yaxis.title, text } },
      shapes: [...layout.shapes, ...bars],
    };
    update();
  }

  // A file contains no other requests.
  const last = (requests) => (given.is_file ? requests.first + requests.titles.length : requests.total) - 1;

  // A contrast or a pinned experiment has its own requests: the one of the same number, or its last.
  function placeOf(plot) {
    const { first, titles } = carried.get(plot);
    return Math.max(0, Math.min(number - first, titles.length - 1));
  }

  // Write the request's number and the model into the controls.
  function update() {
    const requests = carried.get(main);
    if (!requests) return;
    slider.max = last(requests);
    slider.value = number;
    output.textContent = `request ${written(number + 1)} of ${written(requests.total)}`;
    slider.ariaValueText = output.textContent;
    back.disabled = number === 0;
    forward.disabled = number === last(requests);
    for (const button of switches) {
      button.ariaPressed = button.dataset.model === requests.model;
      button.disabled = button.dataset.model === "compiled" && requests.pending !== "";
      button.title = button.disabled ? requests.pending : button.dataset.tip;
    }
  }

  async function show(next) {
    const requests = carried.get(main);
    if (!requests) return;
    number = Math.max(0, Math.min(next, last(requests)));
    update();
    if (requests.titles[number - requests.first]) await Promise.all([...carried.keys()].map((plot) => plot.repaint()));
    else save(true);
  }

  // The page's address names the request, so that a link opens it. `redraw` asks the server for a request that no figure
  // carries.
  function save(redraw = false) {
    if (saved === number) return;
    saved = number;
    emit("set", { name: "request", value: number, redraw });
  }

  slider.addEventListener("input", () => show(Number(slider.value)));
  slider.addEventListener("change", () => save());
  const move = (by) => show(number + by).then(() => save());
  back.addEventListener("click", () => move(-1));
  forward.addEventListener("click", () => move(1));
  // The other model's request for the same bytes.
  for (const button of switches) {
    button.addEventListener("click", () => {
      const requests = carried.get(main);
      if (!requests || requests.model === button.dataset.model) return;
      if (requests.other) emit("set", { name: "request", value: Number(requests.other[placeOf(main)]) });
      emit("set", { name: "model", value: button.dataset.model, redraw: true });
    });
  }
  listen("paint", lay);
  listen("paint-pinned", lay);
}
