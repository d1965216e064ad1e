// Redraws heatmaps in place if only cells, texts and outlines change. That takes a tenth of the time of Plotly.react, which
// measures all labels and lays out all axes again.
import { make } from "./dom.js";

// Number of shades of a colour axis. The edges of a stepped scale, at thirds and sixths, fall on whole shades.
const SHADES = 1537;

// The colour of a value on a colour axis, as a pixel of four bytes; nothing where there is no number.
function coloring({ cmin, cmax, colorscale }) {
  const pen = make("canvas", { width: SHADES, height: 1 }).getContext("2d", { willReadFrequently: true });
  pen.fillStyle = pen.createLinearGradient(0.5, 0, SHADES - 0.5, 0);
  for (const [share, color] of colorscale) pen.fillStyle.addColorStop(share, color);
  pen.fillRect(0, 0, SHADES, 1);
  const pixels = new Uint32Array(pen.getImageData(0, 0, SHADES, 1).data.buffer);
  return (value) => pixels[Math.round((value - cmin) / (cmax - cmin) * (SHADES - 1))] ?? 0;
}

// The part of a figure that a redraw in place can't change; "" unless it has only cells.
function frameOf({ data, layout }) {
  if (!data.every((trace) => trace.type === "heatmap" && !trace.texttemplate)) return "";
  const traces = data.map(({ z, name, text, ...rest }) => [z.length, z[0]?.length, rest]);
  const { meta, template, annotations = [], shapes = [], ...rest } = layout;
  const places = [...annotations, ...shapes].map(({ text, path, ...place }) => place);
  return JSON.stringify([traces, rest, places]);
}

export class Cells {
  constructor(plot) {
    this.plot = plot;
  }

  // Redraws in place if possible, and returns whether it was. Otherwise, Plotly must draw the figure.
  redraw(figure) {
    const { data, layout } = figure, { plot, last, frame } = this, axis = plot._fullLayout?.coloraxis;
    this.last = figure;
    this.frame = frameOf(figure);
    if (!axis || !frame || frame !== this.frame || layout.template !== last.layout.template) return false;
    const changes = (name, field, selector) => (layout[name] ?? []).flatMap((item, i) =>
      (item[field] === last.layout[name][i][field] ? [] : [{ ...item, node: plot.querySelector(selector.replace("#", i)) }]));
    const words = changes("annotations", "text", '.annotation[data-index="#"] text');
    const lines = changes("shapes", "path", '.shapelayer path[data-index="#"]');
    const images = data.map(({ xaxis = "x", yaxis = "y" }) => plot.querySelector(`.subplot.${xaxis}${yaxis} .hm image`));
    if (!images.every((image) => image?.style.imageRendering === "pixelated")) return false;
    if (![...words, ...lines].every((item) => item.node) || words.some((word) => /[<&]/.test(word.text))) return false;
    const color = coloring(axis);
    data.forEach(({ z }, i) => { if (!same(z, last.data[i].z)) images[i].setAttribute("href", paint(z, color)); });
    for (const { node, text } of words) node.textContent = text;
    for (const { node, ...line } of lines) node.setAttribute("d", this.inPixels(line));
    // Saving the picture reads it.
    plot.data = data;
    return true;
  }

  inPixels({ path, xref, yref }) {
    const axis = (ref) => this.plot._fullLayout[`${ref[0]}axis${ref.slice(1)}`], x = axis(xref), y = axis(yref);
    return path.replace(/([ML])([^,]+),([^ML]+)/g, (_, to, left, top) =>
      `${to}${x._offset + x.d2p(Number(left))},${y._offset + y.d2p(Number(top))}`);
  }
}

const same = (rows, others) => rows.every((row, r) => row.every((value, c) => Object.is(value, others[r][c])));

// A picture of a grid, one pixel per cell.
function paint(z, color) {
  const canvas = make("canvas", { width: z[0].length, height: z.length });
  const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  let at = 0;
  for (const row of z) for (let c = 0; c < row.length; c++) pixels[at++] = color(row[c]);
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}
