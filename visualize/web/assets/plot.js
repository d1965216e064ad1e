// The live plot (see slots.py). Its value has its figure and the pinned one (see figures.js).
import { Cells } from "./cells.js";
import { emit, given, isDark, make } from "./dom.js";
import { savePicture } from "./files.js";

const NARROW = 480; // pixels
// A canvas that measures text.
let ruler = null;

// Fit a figure to its place: type and margins grow with the page's, and a picture fills its height.
function fit({ data, layout }, node) {
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize), grow = Math.max(1, rem / 15);
  const template = given.themes[isDark() ? "dark" : "light"];
  const modebar = { bgcolor: "rgba(0,0,0,0)", color: "#7f8794", activecolor: template.layout.font.color };
  const font = { ...layout.font, size: rem * 0.95 }, margin = { ...layout.margin }, width = node.clientWidth;
  // A finger scrolls the page.
  const dragmode = matchMedia("(hover: hover)").matches && "zoom";
  const fitted = { ...layout, template, modebar, font, margin, dragmode, autosize: true, width };
  if (node.closest(".picture")) fitted.height = node.clientHeight;
  if (layout.title) {
    // A title of one line shrinks to the plot's width.
    ruler ??= make("canvas").getContext("2d");
    ruler.font = `${rem * 1.05}px ${template.layout.font.family}`;
    const size = rem * 1.05 * Math.min(1, 0.98 * width / ruler.measureText(layout.title.text).width);
    fitted.title = { ...layout.title, font: { ...layout.title.font, size } };
  }
  // By default, Plotly draws the titles of axes a fifth larger than other text. It writes into axes: they are copies.
  for (const [name, axis] of Object.entries(layout).filter(([key]) => key.includes("axis"))) {
    fitted[name] = { ...axis, ...(axis.title && { title: { ...axis.title, font } }) };
  }
  for (const side of ["l", "r", "t", "b"]) if (margin[side]) margin[side] *= grow;
  // On a phone a legend in a row may become a column, and would cover the title.
  if (layout.legend?.orientation === "h" && width < NARROW) {
    fitted.legend = { ...layout.legend, yref: "container", y: 0, yanchor: "bottom" };
    const entries = data.filter((trace) => trace.showlegend !== false);
    Object.assign(margin, { t: 3 * rem, b: margin.b + 1.75 * rem * entries.length });
  }
  // Annotations are shifted by pixels. Numbers in cells have a fixed size; otherwise Plotly would measure each.
  fitted.annotations = layout.annotations?.map((note) => ({ ...note, yshift: note.yshift && note.yshift * grow }));
  const enlarge = (type) => type && { ...type, size: type.size * grow };
  return { data: data.map((trace) => ({ ...trace, textfont: enlarge(trace.textfont) })), layout: fitted };
}

export default function mountPlot(element) {
  // One Plotly figure, redrawn in place.
  class LivePlot {
    // Before each drawing, `event` lets other scripts change `detail`: its data and layout.
    constructor(node, event) {
      Object.assign(this, { node, event, cells: new Cells(node), fold: node.closest("details") });
      this.fold?.addEventListener("toggle", () => this.resize());
      node.repaint = () => {
        // A hidden plot is drawn when it is shown.
        this.painted = null;
        return this.paint();
      };
      // The same object for all redraws: otherwise Plotly recreates the plot, which takes longer and loses the zoom.
      // These buttons and no others: Plotly's own list has one that uploads the chart to a third party.
      const files = [this.button("png", "PNG, at 2×"), this.button("svg", "SVG")];
      if ("steps" in node.dataset) files.push(this.button("gif", "GIF of the steps"));
      this.config = { displaylogo: false, showSendToCloud: false, modeBarButtons: [["zoom2d", "pan2d", "resetScale2d"], files] };
      // The theme and talk mode are classes of the body.
      new MutationObserver(node.repaint).observe(document.body, { attributes: true, attributeFilter: ["class"] });
      new ResizeObserver(() => this.resize()).observe(node);
    }

    // The button that saves the figure as it is drawn.
    button(format, title) {
      const word = `<text x="0" y="16" font-size="14" font-weight="700" fill="#7f8794">${format.toUpperCase()}</text>`;
      const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 20">${word}</svg>`;
      return { name: format, title: `Save as ${title}`, icon: { svg }, click: () => savePicture(this.node, this.figure.about, format) };
    }

    show(figure) {
      if (figure.text === this.text) return;
      this.text = figure.text;
      this.figure = figure.data ? figure : null;
      clearTimeout(this.timer);
      if (!this.figure) return this.clear();
      // A plot in a closed fold is drawn when the fold opens; measuring it earlier would lay out the fold.
      if (this.fold?.open === false) return;
      // A plot below the window waits until those in view are drawn, and is drawn once for many moves of a slider.
      const box = this.node.getBoundingClientRect();
      if (box.top < innerHeight && box.bottom > 0) this.paint();
      else this.timer = setTimeout(this.node.repaint, 250);
    }

    // A hidden plot has no size, and is drawn when it is shown.
    resize() {
      const { node } = this, drawn = node._fullLayout, isHigh = node.closest(".picture") && drawn?.height !== node.clientHeight;
      if (this.figure !== this.painted || drawn?.width !== node.clientWidth || isHigh) this.paint();
    }

    clear() {
      clearTimeout(this.whole);
      this.cells = new Cells(this.node);
      window.Plotly?.purge(this.node);
      this.painted = this.ranges = null;
      emit("cleared", null, this.node);
    }

    async paint() {
      const { node, figure } = this;
      if (!figure || !window.Plotly || !node.clientWidth) return;
      clearTimeout(this.timer);
      // Drawing now would end the reader's drag.
      if (node._dragging) {
        this.timer = setTimeout(node.repaint, 100);
        return;
      }
      this.painted = figure;
      // The current and the pinned picture of several maps are stacked, each at full width.
      element.classList.toggle("stacked", "xaxis2" in figure.layout);
      const detail = fit(figure, node);
      emit(this.event, detail, node);
      clearTimeout(this.whole);
      // Plotly follows once the plot rests, for its zoom and its hover texts.
      if (this.cells.redraw(detail)) {
        this.reactLater(detail);
        emit("drawn", null, node);
      } else await this.react(detail);
      node.dataset.draws = Number(node.dataset.draws || 0) + 1;
    }

    reactLater(detail) {
      this.whole = setTimeout(() => this.node._dragging ? this.reactLater(detail) : this.react(detail), 250);
    }

    react({ data, layout }) {
      shareRangesLater();
      return this.draw(data, layout);
    }

    // If a page has a <base>, Plotly writes references to gradients and clips with the whole address, and they break when
    // the address changes. References within a document need no base (CSS Values 4, "local url flag").
    draw(data, layout) {
      const { node } = this, base = document.querySelector("base");
      base?.remove();
      const drawing = window.Plotly.react(node, data, layout, this.config);
      if (base) document.head.prepend(base);
      for (const event of ["plotly_afterplot", "plotly_relayout"]) {
        node.removeAllListeners(event);
        node.on(event, () => emit("drawn", null, node));
      }
      return drawing;
    }

    // The ranges that Plotly chose, by axis and quantity: its scale, and its title without numbers (a median of 460 samples,
    // and of 220).
    chosenRanges() {
      const free = Object.entries(this.node._fullLayout ?? {}).filter(([name, axis]) =>
        /^[xy]axis\d*$/.test(name) && axis.autorange === true && axis.title?.text && ["linear", "log"].includes(axis.type));
      const quantity = (name, axis) => `${name} ${axis.type} ${axis.title.text.replace(/\d+/g, "")}`;
      // Without a free axis it has the shared ranges, or none.
      if (free.length) this.ranges = new Map(free.map(([name, axis]) => [quantity(name, axis), [...axis.range]]));
      return this.ranges ?? [];
    }
  }

  const own = new LivePlot(element.querySelector(".live-plot"), "paint");
  let pinned = null;

  // Show a second plot next to this one, or hide it.
  function pair(isPinned) {
    const row = element.closest(".picture");
    if (!pinned) {
      const beside = make("div", { class: "pinned-plot", role: "figure", "aria-label": `Pinned: ${own.node.ariaLabel}` });
      own.node.after(beside);
      // The pinned plot has an event of its own, so scripts that draw over one plot ignore the other.
      pinned = new LivePlot(beside, "paint-pinned");
    }
    pinned.node.hidden = !isPinned;
    element.classList.toggle("paired", isPinned);
    // In a row with pairs, each plot takes a whole line.
    row?.classList.toggle("with-pairs", row.querySelector(".paired") !== null);
    own.paint();
  }

  // Axes of the same quantity get the same range in both plots, so that heights can be compared. A timer waits for both
  // drawings, because Plotly never resolves the promise of a superseded drawing.
  let sharing = 0;
  function shareRangesLater() {
    clearTimeout(sharing);
    sharing = setTimeout(() => {
      const others = new Map(pinned?.chosenRanges()), shared = [];
      for (const [quantity, [low, high]] of own.chosenRanges()) {
        const [otherLow, otherHigh] = others.get(quantity) ?? [];
        if (low <= high && otherLow <= otherHigh) shared.push([quantity.split(" ")[0], [Math.min(low, otherLow), Math.max(high, otherHigh)]]);
      }
      if (!shared.length) return;
      if (own.node._dragging || pinned.node._dragging) return shareRangesLater();
      for (const plot of [own, pinned]) {
        const layout = { ...plot.node.layout };
        for (const [name, range] of shared) layout[name] = { ...layout[name], range: [...range], autorange: false };
        // Not by relayout: Plotly would take the ranges for the reader's zoom, and keep them in the next figure.
        plot.draw(plot.node.data, layout);
      }
    }, 50);
  }

  return ([figure, pinnedFigure = { text: "" }]) => {
    const isNone = figure.text === "none", isPinned = pinnedFigure.text !== "";
    own.node.classList.toggle("none", isNone);
    own.node.classList.toggle("lone", isPinned && !figure.data);
    element.hidden = isNone && !isPinned;
    if (isPinned !== element.classList.contains("paired")) pair(isPinned);
    pinned?.show(pinnedFigure);
    own.show(figure);
  };
}
