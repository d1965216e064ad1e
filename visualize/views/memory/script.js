// The switch and the scrubber (see view.py): draw any request that the figures carry (`layout.meta.requests`, see
// figures.request_frames), and move the lines when the model changes.
const root = element.querySelector(".scrubber");
const slider = root.querySelector("input");
const said = root.querySelector("output");
const models = [...element.querySelectorAll(".switch button")];
const carried = new Map(); // plot → its figure's requests
const drawnAs = new Map(); // plot → the requests that it has shown last
const LANES_AT = -0.45, POINTS = 21; // as in figures.py
const MOVE = 600; // milliseconds, more than the transition takes
let number = 0; // of the request in the picture
let told = 0; // the number in the page's address

const main = () => [...carried.values()].find((requests) => requests.is_main);

// A plot is about to be drawn: put the chosen request in it.
function lay({ target, detail }) {
  const requests = detail.layout.meta?.requests;
  if (!requests) {
    carried.delete(target);
    return;
  }
  if (carried.get(target) !== requests) {
    carried.set(target, requests);
    if (requests.is_main) number = told = requests.first + requests.place;
  }
  for (const plot of carried.keys()) if (!plot.isConnected) carried.delete(plot);
  const place = placeOf(requests), rows = [...Array(requests.rows).keys()];
  const [bytes, lines, lanes] = detail.data, { title, yaxis } = detail.layout;
  // The other model for the same block: the lines move (see style.css).
  const before = drawnAs.get(target);
  drawnAs.set(target, requests);
  if (before?.block === requests.block && before.model !== requests.model) {
    target.classList.add("moving");
    setTimeout(() => target.classList.remove("moving"), MOVE);
  }
  const hovertext = rows.map((row) => words(requests, place, row));
  detail.data = [
    { ...bytes, z: rows.map((row) => part(requests, "state", place, row)), hovertext, hoverinfo: "text" },
    { ...lines, ...links(requests, place) },
    { ...lanes, ...laneMarks(requests, place, lanes) },
  ];
  const ticktext = Array.from(yaxis.tickvals, (at) => begins(requests, place, Math.floor(at * requests.rows)));
  detail.layout = { ...detail.layout, title: { ...title, text: requests.titles[place] }, yaxis: { ...yaxis, ticktext } };
  tell();
}

const holds = (requests) => number >= requests.first && number < requests.first + requests.titles.length;

// The contrast has requests of its own: the one of the same number, or its last.
function placeOf(requests) {
  if (requests.is_main) return holds(requests) ? number - requests.first : requests.place;
  return Math.max(0, Math.min(number - requests.first, requests.titles.length - 1));
}

// One row of one request.
function part(requests, name, place, row) {
  const cells = requests.line_bytes / requests.cell_bytes;
  return requests[name][place].subarray(row * cells, (row + 1) * cells);
}

// The lines of a request, as figures.flow_figure draws them.
function links(requests, place) {
  const { start, rows } = requests, cells = requests.line_bytes / requests.cell_bytes;
  const targets = Array.from(requests.target[place]);
  const rowOf = (target) => Math.floor((target - 1) / cells);
  const inRow = new Map(), before = new Map(), x = [], y = [];
  for (const target of targets) if (target) inRow.set(rowOf(target), (inRow.get(rowOf(target)) ?? 0) + 1);
  targets.forEach((target, line) => {
    const row = rowOf(target), to = ((target - 1) % cells) / cells, nth = before.get(row) ?? 0;
    before.set(row, nth + 1);
    const end = (row + (nth + 0.5) / inRow.get(row)) / rows;
    for (let i = 0; i < POINTS; i++) {
      const t = i / (POINTS - 1);
      x.push(target ? LANES_AT + (to - LANES_AT) * t : NaN);
      y.push(target ? start[line] + (end - start[line]) * (3 - 2 * t) * t * t : NaN);
    }
    x.push(NaN);
    y.push(NaN);
  });
  return { x, y };
}

// The colors and hover texts of the lanes. A box has one node, and no lanes.
function laneMarks(requests, place, { marker }) {
  if (requests.holder !== "lane") return { hovertext: "the Tensor Memory Accelerator", hoverinfo: "text" };
  const cells = requests.line_bytes / requests.cell_bytes, targets = Array.from(requests.target[place]);
  const used = "#0072b2", idle = "rgba(148, 163, 184, .5)";
  const hovertext = targets.map((target, lane) => {
    if (!target) return `lane ${lane}`;
    const line = requests.line[place][Math.floor((target - 1) / cells)] - 1;
    const first = line * requests.line_bytes + ((target - 1) % cells) * requests.cell_bytes;
    return `lane ${lane}<br>${bytesFrom(first, requests.cell_bytes)}`;
  });
  return { hovertext, hoverinfo: "text", marker: { ...marker, color: targets.map((target) => (target ? used : idle)) } };
}

const bytesFrom = (first, count) => `bytes ${first.toLocaleString("en")} to ${(first + count - 1).toLocaleString("en")}`;

// The first byte of a line, as the axis writes it; lines are numbered from 1, and 0 is none.
function begins(requests, place, row) {
  const line = requests.line[place][row];
  return line ? ((line - 1) * requests.line_bytes).toLocaleString("en") : "";
}

// The hover text of each cell of a row.
function words(requests, place, row) {
  const { cell_bytes: width, element_bytes: size, columns } = requests;
  const line = requests.line[place][row] - 1;
  const states = part(requests, "state", place, row), lanes = part(requests, "lane", place, row);
  const many = Math.max(1, width / size);
  return Array.from(states, (state, cell) => {
    if (line < 0) return "";
    const what = state < 2 ? "not touched" : state === 2 ? "wasted" : `<b>${requests.holder} ${lanes[cell] - 1}</b>`;
    const byte = line * requests.line_bytes + cell * width, element = Math.floor(byte / size);
    const at = `row ${Math.floor(element / columns)}, column ${element % columns}`;
    const elements = many > 1 ? `${many} elements from ${at}` : at;
    const sector = Math.floor(byte / requests.sector_bytes).toLocaleString("en");
    return `${what}<br>${elements}<br>${bytesFrom(byte, width)}<br>sector ${sector}`;
  });
}

function tell() {
  const requests = main();
  if (!requests) return;
  slider.max = requests.total - 1;
  slider.value = number;
  said.textContent = `request ${(number + 1).toLocaleString("en")} of ${requests.total.toLocaleString("en")}`;
  slider.setAttribute("aria-valuetext", said.textContent);
  root.querySelector(".back").disabled = number <= 0;
  root.querySelector(".forward").disabled = number >= requests.total - 1;
  root.dataset.number = number;
  for (const button of models) {
    button.setAttribute("aria-pressed", button.dataset.model === requests.model);
    button.disabled = button.dataset.model === "compiled" && requests.pending !== "";
    button.title = button.disabled ? requests.pending : "";
  }
}

async function show(next) {
  const requests = main();
  if (!requests) return;
  number = Math.max(0, Math.min(next, requests.total - 1));
  tell();
  if (holds(requests)) await Promise.all([...carried.keys()].map((plot) => plot.repaint()));
  else keep(true);
}

const set = (name, value, redraw) => document.dispatchEvent(new CustomEvent("tilescope:set", { detail: { name, value, redraw } }));

// The page's address names the request, so that a link opens it. `redraw` asks the server for a request that no figure
// carries.
function keep(redraw = false) {
  if (told === number) return;
  told = number;
  set("request", number, redraw);
}

slider.addEventListener("input", () => show(Number(slider.value)));
slider.addEventListener("change", () => keep());
for (const [name, by] of [["back", -1], ["forward", 1]]) {
  root.querySelector(`.${name}`).addEventListener("click", async () => {
    await show(number + by);
    keep();
  });
}
// The other model's request for the same bytes.
for (const { dataset } of models) {
  element.querySelector(`[data-model=${dataset.model}]`).addEventListener("click", () => {
    const requests = main();
    if (!requests || requests.model === dataset.model) return;
    if (requests.other) set("request", Number(requests.other[placeOf(requests)]), false);
    set("model", dataset.model, true);
  });
}
document.addEventListener("tilescope:paint", lay);
document.querySelectorAll(".live-plot").forEach((plot) => plot.repaint?.());
