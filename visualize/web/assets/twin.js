// The pinned figure beside a live plot's own (goes before plot.js, and uses what is there; see `with_twin` in plot.py).
let twin = null; // its node
let twinFigure = null;
let twinText = "";
const watching = [];
const ranges = new Map(); // plot → its axes' own ranges
const twinConfig = { responsive: true, displayModeBar: false };

async function showTwin(text = "") {
  node.classList.toggle("lone", Boolean(text) && !JSON.parse(props.value).packed);
  if (text === twinText) return;
  twinText = text;
  if (!text) {
    if (twin) window.Plotly?.purge(twin);
    twin?.remove();
    ranges.clear();
    watching.splice(0).forEach((one) => one.disconnect());
    twin = twinFigure = null;
    node.parentElement.classList.remove("twins");
    placed();
    if (figure) paint();
    return;
  }
  const content = JSON.parse(text);
  const next = unpacked(content, await inflated(content.packed));
  if (text !== twinText) return; // another one was pinned while this one was unpacked
  if (!twin) {
    twin = document.createElement("div");
    twin.className = "twin-plot";
    twin.setAttribute("role", "figure");
    twin.repaint = paintTwin;
    twin.setAttribute("aria-label", `Pinned: ${node.getAttribute("aria-label")}`);
    node.after(twin);
    node.parentElement.classList.add("twins");
    placed();
    watching.push(new MutationObserver(paintTwin), new IntersectionObserver(fit));
    watching[0].observe(document.body, { attributes: true, attributeFilter: ["class"] });
    watching[1].observe(twin);
  }
  twinFigure = next;
  // Pictures of several maps stand one above the other, each in the whole width.
  node.parentElement.classList.toggle("stacked", "xaxis2" in next.layout);
  paintTwin();
  if (figure) paint();
}

// The row that holds plots with twins gives each a line of its own.
function placed() {
  const row = node.closest(".picture, .plots");
  row?.classList.toggle("with-twins", row.querySelector(".twins") !== null);
}

function paintTwin() {
  if (!twinFigure || !window.Plotly) return;
  const shown = { data: twinFigure.data, layout: twinFigure.layout };
  shown.layout.template = template();
  shown.layout.autosize = true;
  sized(twinFigure);
  // As a plot's own figure, but by another name: who draws in one plot alone need not know of the other.
  twin.dispatchEvent(new CustomEvent("tilescope:paint-twin", { bubbles: true, detail: shown }));
  withoutBase(() => window.Plotly.react(twin, shown.data, shown.layout, twinConfig));
  settle();
}

// Once both plots have been drawn. A timer, as the promise of a drawing that another one overtakes is never kept.
let settling = 0;
function settle() {
  clearTimeout(settling);
  settling = setTimeout(() => {
    if (!twin) return;
    [node, twin].forEach(chose);
    shareRanges();
  }, 50);
}

// The ranges of a plot's axes as Plotly chose them, by the axis' name; `of` is the quantity: its scale, and its title but
// for numbers (a median of 460 samples, and of 220).
function chose(plot) {
  const free = Object.entries(plot._fullLayout ?? {}).filter(([name, axis]) =>
    /^[xy]axis\d*$/.test(name) && axis.autorange === true && axis.title?.text && ["linear", "log"].includes(axis.type));
  if (!free.length) return; // it has a shared range, or none
  ranges.set(plot, new Map(free.map(([name, axis]) => [name, { of: `${axis.type} ${axis.title.text.replace(/\d+/g, "")}`, range: [...axis.range] }])));
}

// Axes of one quantity get one range in both plots, so that heights can be compared.
function shareRanges() {
  const [ours, theirs] = [node, twin].map((plot) => plot.data && ranges.get(plot));
  if (!ours || !theirs) return;
  const shared = [];
  for (const [name, { of, range }] of ours) {
    const other = theirs.get(name);
    if (other?.of !== of || range[0] > range[1] || other.range[0] > other.range[1]) continue;
    shared.push([name, [Math.min(range[0], other.range[0]), Math.max(range[1], other.range[1])]]);
  }
  if (!shared.length) return;
  for (const plot of [node, twin]) {
    const axes = shared.map(([name, range]) => [name, { ...plot.layout[name], range: [...range], autorange: false }]);
    // Not by relayout: Plotly would keep its ranges for a zoom of the reader's, and not choose anew when a figure comes.
    withoutBase(() => window.Plotly.react(plot, plot.data, { ...plot.layout, ...Object.fromEntries(axes) }, plot === node ? config : twinConfig));
  }
}

// What was drawn where nobody saw it had no width.
function fit(seen) {
  if (seen.at(-1).isIntersecting && twin?.data) window.Plotly.Plots.resize(twin);
}
