// The scrubber (see scrubber.py): draws any of the requests that the live plots' figures carry (`layout.meta`).
const root = element.querySelector(".scrubber");
const slider = root.querySelector("input");
const said = root.querySelector("output");
const carried = new Map(); // plot → its figure's requests
let number = 0; // of the request that is shown
let told = 0; // the one that the page's address holds

// A plot is about to be drawn: put the chosen request in it.
function lay({ target, detail }) {
  const requests = detail.layout.meta?.requests;
  if (!requests) {
    carried.delete(target);
    return;
  }
  if (carried.get(target) !== requests) {
    carried.set(target, requests);
    number = told = requests.first + requests.place;
  }
  for (const plot of carried.keys()) if (!plot.isConnected) carried.delete(plot);
  const place = holds(requests, number) ? number - requests.first : requests.place;
  const [trace] = detail.data;
  const { title, yaxis } = detail.layout;
  const row = (r) => part(requests, "state", place, r);
  const rows = Array.from({ length: requests.rows }, (_, r) => r);
  const room = roomOf(target, detail.layout, requests);
  const text = thinned(rows.map((r) => Array.from(part(requests, "label", place, r), written)), room);
  const hovertext = rows.map((r) => words(requests, trace.name, place, r));
  // The gaps between narrow cells would cut through a number without a shadow.
  const textfont = { size: room.letter, shadow: room.cell < 2 * room.letter ? "auto" : "none" };
  detail.data = [{ ...trace, z: rows.map(row), text, textfont, hovertext, hoverinfo: "text" }];
  const ticktext = Array.from(yaxis.tickvals, (r) => begins(requests, place, r));
  detail.layout = {
    ...detail.layout,
    title: { ...title, text: requests.titles[place] },
    yaxis: { ...yaxis, ticktext },
  };
  tell();
}

function holds(requests, which) {
  return which >= requests.first && which < requests.first + requests.titles.length;
}

// One row of one request.
function part(requests, name, place, r) {
  const cells = requests.line_bytes / requests.cell_bytes;
  return requests[name][place].subarray(r * cells, (r + 1) * cells);
}

// A lane's number on its own bytes, or beside them: see `labels_of`.
function written(label) {
  const lane = Math.floor((label - 1) / 3);
  return label ? [`${lane}`, `◂ ${lane}`, `${lane} ▸`][(label - 1) % 3] : "";
}

// Pixels: of a cell, of a row, of a letter.
function roomOf(plot, { margin, font, height, yaxis }, requests) {
  const size = plot._fullLayout?._size ?? { w: plot.clientWidth - margin.l - margin.r, h: height - margin.t - margin.b };
  const cells = requests.line_bytes / requests.cell_bytes;
  return { cell: size.w / cells, row: size.h / (yaxis.range[0] - yaxis.range[1]), letter: font.size * 0.95 };
}

// The same texts, every second, fourth, … alone, until none touches its neighbour to the side or below.
function thinned(texts, { cell, row, letter }) {
  const every = (fits) => {
    let n = 1;
    while (n < 64 && !fits(n)) n *= 2;
    return n;
  };
  const places = texts.map((line) => [...line.keys()].filter((c) => line[c]));
  const wide = (text) => 0.6 * letter * text.length + 4;
  const apart = (line, [a, b]) => (b - a) * cell >= (wide(line[a]) + wide(line[b])) / 2;
  const pairs = (kept) => kept.slice(1).map((c, i) => [kept[i], c]);
  const nth = (list, n) => list.filter((_, i) => i % n === 0);
  const across = every((n) => places.every((line, r) => pairs(nth(line, n)).every((pair) => apart(texts[r], pair))));
  const lines = [...places.keys()].filter((r) => places[r].length);
  const down = every((n) => pairs(nth(lines, n)).every(([a, b]) => (b - a) * row >= 1.15 * letter));
  const shown = new Set(nth(lines, down));
  return texts.map((line, r) => {
    const kept = new Set(shown.has(r) ? nth(places[r], across) : []);
    return line.map((text, c) => (kept.has(c) ? text : ""));
  });
}

// The first byte of a line, as the axis writes it; lines are numbered from 1, and 0 is none.
function begins(requests, place, r) {
  const line = requests.line[place][r];
  return line ? ((line - 1) * requests.line_bytes).toLocaleString("en") : "";
}

// What stands under the pointer, cell by cell.
function words(requests, who, place, r) {
  const { cell_bytes: width, element_bytes: size, columns } = requests;
  const line = requests.line[place][r] - 1;
  const states = part(requests, "state", place, r), lanes = part(requests, "lane", place, r);
  const what = (cell) => {
    if (states[cell] < 2) return "not touched";
    return states[cell] === 2 ? "moved for nothing" : `<b>${who} ${lanes[cell] - 1}</b>`;
  };
  const many = Math.max(1, width / size);
  return Array.from(states, (_, cell) => {
    if (line < 0) return "";
    const byte = line * requests.line_bytes + cell * width, element = Math.floor(byte / size);
    const at = `row ${Math.floor(element / columns)}, column ${element % columns}`;
    const elements = many > 1 ? `${many} elements from ${at}` : at;
    const address = `bytes ${byte.toLocaleString("en")} to ${(byte + width - 1).toLocaleString("en")}`;
    const sector = Math.floor(byte / requests.sector_bytes).toLocaleString("en");
    return `${what(cell)}<br>${elements}<br>${address}<br>sector ${sector}`;
  });
}

function tell() {
  const [first] = carried.values();
  if (!first) return;
  slider.max = first.total - 1;
  slider.value = number;
  said.textContent = `request ${(number + 1).toLocaleString("en")} of ${first.total.toLocaleString("en")}`;
  slider.setAttribute("aria-valuetext", said.textContent);
  root.querySelector(".back").disabled = number <= 0;
  root.querySelector(".forward").disabled = number >= first.total - 1;
  root.dataset.number = number;
}

async function show(next) {
  const [first] = carried.values();
  if (!first) return;
  number = Math.max(0, Math.min(next, first.total - 1));
  tell();
  if ([...carried.values()].every((requests) => holds(requests, number))) {
    await Promise.all([...carried.keys()].map((plot) => plot.repaint()));
  } else keep(true);
}

// What is seen stands in the page's address, so that a link opens it. `redraw` asks for what no figure carries.
function keep(redraw = false) {
  if (told === number) return;
  told = number;
  document.dispatchEvent(new CustomEvent("tilescope:set", { detail: { name: "request", value: number, redraw } }));
}

slider.addEventListener("input", () => show(Number(slider.value)));
slider.addEventListener("change", () => keep());
for (const [name, by] of [["back", -1], ["forward", 1]]) {
  root.querySelector(`.${name}`).addEventListener("click", async () => {
    await show(number + by);
    keep();
  });
}
document.addEventListener("tilescope:paint", lay);
let resized = 0;
window.addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => carried.forEach((_, plot) => plot.repaint()), 200);
});
document.querySelectorAll(".live-plot").forEach((plot) => plot.repaint?.());
