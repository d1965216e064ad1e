// The live plot (see plot.py). `props.value` is a figure as JSON, its arrays packed.
const node = element.querySelector(".live-plot");
node.setAttribute("aria-label", given.label);
let figure = null;
let latest = 0;

async function inflated(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function unpacked(value) {
  if (Array.isArray(value)) return Promise.all(value.map(unpacked));
  if (value === null || typeof value !== "object") return value;
  if ("packed" in value) return array(await inflated(value.packed), value.dtype, value.shape);
  const entries = await Promise.all(Object.entries(value).map(async ([k, v]) => [k, await unpacked(v)]));
  return Object.fromEntries(entries);
}

function array(buffer, dtype, shape) {
  const flat = dtype === "f4" ? new Float32Array(buffer) : new Uint32Array(buffer);
  if (dtype === "u4") for (let i = 1; i < flat.length; i++) flat[i] += flat[i - 1];
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
  if (!props.value) {
    figure = null;
    window.Plotly?.purge(node);
    return;
  }
  const next = await unpacked(JSON.parse(props.value));
  if (turn !== latest) return; // a newer figure came while this one was unpacked
  figure = next;
  paint();
}

function paint() {
  if (!figure) return;
  figure.layout.template = template();
  figure.layout.autosize = true;
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
  const shown = { data: figure.data, layout: figure.layout };
  // Another component may lay something over it: the player does.
  node.dispatchEvent(new CustomEvent("tilescope:paint", { bubbles: true, detail: shown }));
  const drawn = withoutBase(() => window.Plotly.react(node, shown.data, shown.layout, config));
  return drawn.then(() => { node.dataset.draws = Number(node.dataset.draws || 0) + 1; });
}
node.repaint = paint;

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
  if (seen.some((entry) => entry.isIntersecting) && window.Plotly && figure) window.Plotly.Plots.resize(node);
}).observe(node);
watch("value", draw);
draw();
