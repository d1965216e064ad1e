// The live plot (see plot.py). `props.value` is a figure, or a figure and a pinned one with a space in between.
const ARRAYS = { i: Int32Array, u: Uint32Array, f: Float32Array };
const NARROW = 480; // pixels

// Inflate a figure: the bytes of its arrays, as a number; the arrays, integers as differences; and its JSON.
async function decode(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const inflate = () => new DecompressionStream("deflate");
  const stream = new Response(bytes).body.pipeThrough(inflate()).pipeThrough(inflate());
  const buffer = await new Response(stream).arrayBuffer(), [size] = new Uint32Array(buffer, 0, 1);
  const nest = (flat, [length, ...rest]) => {
    const step = flat.length / length;
    return rest.length ? Array.from({ length }, (_, i) => nest(flat.subarray(i * step, (i + 1) * step), rest)) : flat;
  };
  const array = ({ first, kind, lag, shape }) => {
    const count = shape.reduce((product, n) => product * n), words = new Uint32Array(buffer, 4 + 4 * first, count);
    for (let i = lag || count; i < count; i++) words[i] += words[i - lag];
    return nest(new ARRAYS[kind](buffer, words.byteOffset, count), shape);
  };
  const json = new TextDecoder().decode(new Uint8Array(buffer, 4 + size));
  return JSON.parse(json, (_, value) => (value?.lag >= 0 ? array(value) : value));
}

// Where a page has a <base>, Plotly writes its gradients' and clips' references with the whole address, and they
// break when the address changes. References within a document need no base (CSS Values 4, "local url flag").
function withoutBase(action) {
  const base = document.querySelector("base");
  const parent = base?.parentNode;
  base?.remove();
  try { return action(); } finally { if (base) parent.prepend(base); }
}

// One Plotly figure, redrawn in place.
class LivePlot {
  // Before each drawing, `event` lets other components change `detail`: its data and layout.
  constructor(node, event) {
    Object.assign(this, { node, event, cells: new Cells(node), inView: true }); // until it is known
    node.repaint = () => this.paint();
    // One object for all redraws: with another one Plotly makes the plot anew, which takes longer and loses the zoom.
    // These buttons and no others: Plotly's own list has one that uploads the chart to a third party.
    const buttons = [["zoom2d", "pan2d", "resetScale2d"], [this.button("png", "PNG, at 2×"), this.button("svg", "SVG")]];
    this.config = { responsive: true, displaylogo: false, showSendToCloud: false, modeBarButtons: buttons };
    this.observers = [
      new MutationObserver(node.repaint),
      // A plot drawn in a hidden tab has no width: draw again when it comes into view.
      new IntersectionObserver((entries) => {
        this.inView = entries.at(-1).isIntersecting;
        if (this.inView && node.data) window.Plotly.Plots.resize(node);
      }),
      // Plotly follows its place's width alone.
      new ResizeObserver(() => {
        if (node.closest(".picture") && node.clientHeight && node._fullLayout && node._fullLayout.height !== node.clientHeight) this.paint();
      }),
    ];
    this.observers[2].observe(node);
    this.observers[0].observe(document.body, { attributes: true, attributeFilter: ["class"] });
    this.observers[1].observe(node);
  }

  // The button that saves the figure as it stands.
  button(format, title) {
    const word = `<text x="0" y="16" font-size="14" font-weight="700" fill="#7f8794">${format.toUpperCase()}</text>`;
    const icon = { svg: `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 20">${word}</svg>` };
    const click = () => window.tilescopeFiles.savePicture(this.node, this.figure.about, format);
    return { name: format, title: `Save as ${title}`, icon, click };
  }

  async show(text) {
    if (text === this.text) return;
    this.text = text;
    const figure = text ? await decode(text) : null;
    if (text !== this.text) return; // a newer figure came while this one was inflated
    this.figure = figure;
    clearTimeout(this.timer);
    // What nobody sees waits until what somebody sees has been drawn, and is drawn once for many moves of a slider.
    if (!figure) this.clear();
    else if (this.inView && this.node.checkVisibility()) this.paint();
    else this.timer = setTimeout(this.node.repaint, 250);
  }

  clear() {
    clearTimeout(this.whole);
    this.cells.forget();
    window.Plotly?.purge(this.node);
    this.node.dispatchEvent(new CustomEvent("tilescope:cleared", { bubbles: true }));
  }

  remove() {
    this.text = this.figure = null;
    this.observers.forEach((observer) => observer.disconnect());
    this.clear();
    this.node.remove();
  }

  async paint() {
    if (!this.figure || !window.Plotly) return;
    const { node, figure } = this;
    const template = given.themes[document.body.classList.contains("dark") ? "dark" : "light"];
    const modebar = { bgcolor: "rgba(0,0,0,0)", color: "#7f8794", activecolor: template.layout.font.color };
    Object.assign(figure.layout, { template, modebar, autosize: true });
    // Pinned and own pictures of several maps stand one above the other, each in the whole width.
    node.parentElement.classList.toggle("stacked", "xaxis2" in figure.layout);
    this.size();
    const detail = { data: figure.data, layout: figure.layout };
    node.dispatchEvent(new CustomEvent(this.event, { bubbles: true, detail }));
    clearTimeout(this.whole);
    // Plotly is told once the plot rests: what it says of a cell that is pointed at is its own.
    if (this.cells.redrawn(detail)) this.whole = setTimeout(() => this.react(detail), 250);
    else await this.react(detail);
    node.dataset.draws = Number(node.dataset.draws || 0) + 1;
  }

  react(detail) {
    const drawing = withoutBase(() => window.Plotly.react(this.node, detail.data, detail.layout, this.config));
    this.cells.drawn(detail);
    shareRangesLater();
    // The buttons stand at the lower right, where they cover no title.
    const lower = () => {
      const bar = this.node.querySelector(".modebar-container");
      if (bar) bar.style.top = `${this.node._fullLayout.height - 28}px`;
    };
    lower();
    this.node.removeAllListeners("plotly_afterplot");
    this.node.on("plotly_afterplot", lower);
    return drawing;
  }

  // Type grows with the page's, margins with it, and a picture is as high as its place.
  size() {
    const { node, figure } = this, { data, layout } = figure;
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    layout.font = { ...layout.font, size: rem * 0.95 };
    if (layout.title) layout.title.font = { ...layout.title.font, size: rem * 1.05 };
    // By default, Plotly draws the titles of axes a fifth larger than other text.
    for (const [name, axis] of Object.entries(layout)) {
      if (/^[xy]axis/.test(name) && axis.title) layout[name] = { ...axis, title: { ...axis.title, font: layout.font } };
    }
    if (node.closest(".picture")) layout.height = node.clientHeight || layout.height;
    // Numbers in cells have a size in the figure, as Plotly would measure each; and notes stand off by pixels.
    const grow = Math.max(1, rem / 15);
    figure.sizes ??= data.map(({ textfont }) => (typeof textfont?.size === "number" ? textfont.size : 0));
    figure.sizes.forEach((size, i) => { if (size) data[i].textfont = { ...data[i].textfont, size: size * grow }; });
    figure.shifts ??= (layout.annotations ?? []).map(({ yshift }) => yshift);
    figure.shifts.forEach((yshift, i) => { if (yshift) layout.annotations[i] = { ...layout.annotations[i], yshift: yshift * grow }; });
    figure.margin ??= layout.margin ?? {};
    figure.legend ??= layout.legend ?? {};
    // On a phone a legend in a row becomes a column, and would cover the title.
    const below = figure.legend.orientation === "h" && node.clientWidth < NARROW;
    if (layout.legend) layout.legend = below ? { ...figure.legend, yref: "container", y: 0, yanchor: "bottom" } : figure.legend;
    const sides = Object.entries(figure.margin).filter(([, pixels]) => typeof pixels === "number");
    layout.margin = { ...figure.margin, ...Object.fromEntries(sides.map(([side, pixels]) => [side, pixels * grow])) };
    if (below) layout.margin = { ...layout.margin, t: 3 * rem, b: layout.margin.b + 7 * rem };
  }

  // The ranges of the axes as Plotly chose them, by the axis' name; `of` is the quantity: its scale, and its title without
  // numbers (a median of 460 samples, and of 220).
  chosenRanges() {
    const free = Object.entries(this.node._fullLayout ?? {}).filter(([name, axis]) =>
      /^[xy]axis\d*$/.test(name) && axis.autorange === true && axis.title?.text && ["linear", "log"].includes(axis.type));
    const quantity = ({ type, title }) => `${type} ${title.text.replace(/\d+/g, "")}`;
    // Without a free axis it has the shared ranges, or none.
    if (free.length) this.ranges = new Map(free.map(([name, axis]) => [name, { of: quantity(axis), range: [...axis.range] }]));
    return this.node.data ? this.ranges : undefined;
  }
}

const own = new LivePlot(element.querySelector(".live-plot"), "tilescope:paint");
let pinned = null;

function showValue() {
  const [text, pinnedText = ""] = props.value.split(" "), { node } = own;
  const isNone = text === "none", figure = isNone ? "" : text;
  node.classList.toggle("none", isNone);
  node.classList.toggle("lone", Boolean(pinnedText) && !figure);
  element.hidden = isNone && !pinnedText;
  if (Boolean(pinnedText) !== Boolean(pinned)) pair(Boolean(pinnedText));
  pinned?.show(pinnedText);
  own.show(figure);
}

// Place a second plot beside the own one, or remove it.
function pair(isPinned) {
  const { node } = own;
  if (isPinned) {
    const beside = Object.assign(document.createElement("div"), { className: "twin-plot" });
    beside.setAttribute("role", "figure");
    beside.setAttribute("aria-label", `Pinned: ${node.getAttribute("aria-label")}`);
    node.after(beside);
    // Another event than the own plot's: components that draw over one plot need not know of the pinned one.
    pinned = new LivePlot(beside, "tilescope:paint-twin");
  } else {
    pinned.remove();
    pinned = null;
  }
  node.parentElement.classList.toggle("twins", isPinned);
  // The row that holds pairs gives each a line of its own.
  const row = node.closest(".picture, .plots");
  row?.classList.toggle("with-twins", row.querySelector(".twins") !== null);
  own.paint();
}

// Axes of one quantity get one range in both plots, so that heights can be compared, once both have been drawn. A timer, as
// the promise of a drawing that another one overtakes is never kept.
let sharing = 0;
function shareRangesLater() {
  clearTimeout(sharing);
  sharing = setTimeout(() => {
    const ours = pinned && own.chosenRanges(), theirs = pinned?.chosenRanges();
    if (!ours || !theirs) return;
    const shared = [...ours].flatMap(([name, { of, range: [low, high] }]) => {
      const other = theirs.get(name), [otherLow, otherHigh] = other?.range ?? [];
      return other?.of === of && low <= high && otherLow <= otherHigh ? [[name, [Math.min(low, otherLow), Math.max(high, otherHigh)]]] : [];
    });
    if (!shared.length) return;
    for (const { node, config } of [own, pinned]) {
      const axes = shared.map(([name, range]) => [name, { ...node.layout[name], range: [...range], autorange: false }]);
      // Not by relayout: Plotly would keep its ranges for a zoom of the reader's, and not choose again when a figure comes.
      withoutBase(() => window.Plotly.react(node, node.data, { ...node.layout, ...Object.fromEntries(axes) }, config));
    }
  }, 50);
}

watch("value", showValue);
showValue();
