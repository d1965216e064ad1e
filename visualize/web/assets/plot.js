// The live plot (see plot.py). `props.value` is a figure as JSON, its arrays packed.
const node = element.querySelector(".live-plot");
let figure = null;
let latest = 0;
let inView = true; // until it is known
let later = 0;

async function inflated(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const inflate = () => new DecompressionStream("deflate");
  return new Response(new Response(bytes).body.pipeThrough(inflate()).pipeThrough(inflate())).arrayBuffer();
}

function unpacked(value, buffer) {
  if (Array.isArray(value)) return value.map((item) => unpacked(item, buffer));
  if (value === null || typeof value !== "object") return value;
  if ("packed_at" in value) return array(buffer, value);
  return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, unpacked(v, buffer)]));
}

function array(buffer, { packed_at: at, dtype, shape }) {
  const length = shape.reduce((product, n) => product * n, 1);
  if (dtype === "text") return new TextDecoder().decode(new Uint8Array(buffer, at, length)).split("\n");
  let flat = dtype === "f4" ? new Float32Array(buffer, at, length) : new Uint32Array(buffer, at, length);
  if (dtype !== "f4") for (let i = 1; i < flat.length; i++) flat[i] += flat[i - 1];
  if (dtype === "g4") {
    const counted = flat; // from 1: 0 is a gap
    flat = new Float64Array(length);
    for (let i = 0; i < length; i++) flat[i] = counted[i] ? counted[i] - 1 : NaN;
  }
  if (shape.length === 1) return flat;
  const [rows, columns, depth] = shape;
  const row = (r) => flat.subarray(r * columns, (r + 1) * columns);
  if (shape.length === 2) return Array.from({ length: rows }, (_, r) => row(r));
  const plane = rows * columns;
  const cell = (i) => Array.from({ length: depth }, (_, d) => flat[d * plane + i]);
  return Array.from({ length: rows }, (_, r) => Array.from({ length: columns }, (_, c) => cell(r * columns + c)));
}

function template() {
  return given.themes[document.body.classList.contains("dark") ? "dark" : "light"];
}

async function draw() {
  const turn = ++latest;
  node.classList.toggle("none", props.value === "none");
  element.hidden = props.value === "none";
  const content = props.value && props.value !== "none" ? JSON.parse(props.value) : {};
  showTwin(content.twin);
  if (!content.packed) {
    figure = null;
    clearTimeout(whole);
    cells.forget();
    window.Plotly?.purge(node);
    node.dispatchEvent(new CustomEvent("tilescope:cleared", { bubbles: true }));
    return;
  }
  const next = unpacked(content, await inflated(content.packed));
  if (turn !== latest) return; // a newer figure came while this one was unpacked
  figure = next;
  clearTimeout(later);
  // What nobody sees waits until what somebody sees has been drawn, and is drawn once for many moves of a slider.
  if (inView && node.checkVisibility()) paint();
  else later = setTimeout(paint, 250);
}

// The button that saves the figure as it stands.
function picture(format, title) {
  const word = `<text x="0" y="16" font-size="14" font-weight="700" fill="#7f8794">${format.toUpperCase()}</text>`;
  const icon = { svg: `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 20">${word}</svg>` };
  return { name: format, title: `Save as ${title}`, icon, click: () => window.tilescopeFiles.savePicture(node, figure.about, format) };
}

// These buttons and no others: Plotly's own list has one that uploads the chart to a third party. One object for all
// redraws: with another one Plotly makes the plot anew, which takes longer and loses the zoom.
const buttons = [["zoom2d", "pan2d", "resetScale2d"], [picture("png", "PNG, at 2×"), picture("svg", "SVG")]];
const config = { responsive: true, displaylogo: false, showSendToCloud: false, modeBarButtons: buttons };

function paint() {
  if (!figure) return;
  figure.layout.template = template();
  figure.layout.autosize = true;
  sized(figure);
  figure.layout.modebar = { bgcolor: "rgba(0,0,0,0)", color: "#7f8794", activecolor: figure.layout.template.layout.font.color };
  const shown = { data: figure.data, layout: figure.layout };
  // Another component may lay something over it: the player does.
  node.dispatchEvent(new CustomEvent("tilescope:paint", { bubbles: true, detail: shown }));
  clearTimeout(whole);
  if (cells.redrawn(shown)) {
    // Plotly is told once it rests: what it says of a cell that is pointed at is its own.
    whole = setTimeout(() => react(shown), 250);
    count();
    return Promise.resolve();
  }
  return react(shown).then(count);
}
node.repaint = paint;

const cells = new Cells(node);
let whole = 0;
function react(shown) {
  const drawn = withoutBase(() => window.Plotly.react(node, shown.data, shown.layout, config));
  cells.drawn(shown);
  settle();
  buttonsBelow();
  if (!node.dataset.draws) node.on("plotly_afterplot", buttonsBelow);
  return drawn;
}

function count() {
  node.dataset.draws = Number(node.dataset.draws || 0) + 1;
}

// The buttons stand at the lower right, where they cover no title.
function buttonsBelow() {
  const bar = node.querySelector(".modebar-container");
  if (bar) bar.style.top = `${node._fullLayout.height - 28}px`;
}

// Type grows with the page's, margins with it, and a picture is as high as its place.
const NARROW = 480; // pixels
function sized(one) {
  const { layout } = one;
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  layout.font = { ...layout.font, size: rem * 0.95 };
  // By default, Plotly draws the titles of axes a fifth larger than other text.
  for (const [name, axis] of Object.entries(layout)) {
    if (/^[xy]axis/.test(name) && axis.title) layout[name] = { ...axis, title: { ...axis.title, font: layout.font } };
  }
  if (layout.title) layout.title.font = { ...layout.title.font, size: rem * 1.05 };
  if (node.closest(".picture")) layout.height = node.clientHeight || layout.height;
  // Numbers in cells have a size in the figure, as Plotly would measure each; and notes stand off by pixels.
  const grow = Math.max(1, rem / 15);
  one.sizes ??= one.data.map(({ textfont }) => (typeof textfont?.size === "number" ? textfont.size : 0));
  one.sizes.forEach((size, i) => { if (size) one.data[i].textfont = { ...one.data[i].textfont, size: size * grow }; });
  one.shifts ??= (layout.annotations ?? []).map(({ yshift }) => yshift);
  one.shifts.forEach((yshift, i) => { if (yshift) layout.annotations[i] = { ...layout.annotations[i], yshift: yshift * grow }; });
  one.margin ??= layout.margin ?? {};
  one.legend ??= layout.legend ?? {};
  // On a phone a legend in a row becomes a column, and would cover the title.
  const below = one.legend.orientation === "h" && node.clientWidth < NARROW;
  if (layout.legend) layout.legend = below ? { ...one.legend, yref: "container", y: 0, yanchor: "bottom" } : one.legend;
  const sides = Object.entries(one.margin).filter(([, pixels]) => typeof pixels === "number");
  layout.margin = { ...one.margin, ...Object.fromEntries(sides.map(([side, pixels]) => [side, pixels * grow])) };
  if (below) layout.margin = { ...layout.margin, t: 3 * rem, b: layout.margin.b + 7 * rem };
}

// Where a page has a <base>, Plotly writes its gradients' and clips' references with the whole address, and they
// break when the address changes. References within a document need no base (CSS Values 4, "local url flag").
function withoutBase(action) {
  const base = document.querySelector("base");
  const parent = base?.parentNode;
  base?.remove();
  try { return action(); } finally { if (base) parent.prepend(base); }
}

new MutationObserver(paint).observe(document.body, { attributes: true, attributeFilter: ["class"] });
// A plot drawn in a hidden tab has no width: draw again when it comes into view.
new IntersectionObserver((seen) => {
  inView = seen.at(-1).isIntersecting;
  if (inView && window.Plotly && node.data) window.Plotly.Plots.resize(node);
}).observe(node);
watch("value", draw);
draw();
