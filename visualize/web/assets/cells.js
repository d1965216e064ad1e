// Heatmaps of which only cells, words and outlines have changed, drawn where they stand (goes before plot.js). That takes
// a tenth of the time of Plotly.react, which measures all labels and lays out all axes again.

// A CSS colour as [red, green, blue, alpha], 0 to 255.
function channels(color) {
  channels.known ??= new Map();
  if (!channels.known.has(color)) {
    const one = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
    one.fillStyle = color;
    one.fillRect(0, 0, 1, 1);
    channels.known.set(color, one.getImageData(0, 0, 1, 1).data);
  }
  return channels.known.get(color);
}

// The colour of a value on a colour axis, as Plotly takes it, as a pixel of four bytes; nothing where there is no number.
function coloring({ cmin, cmax, colorscale }) {
  const at = colorscale.map(([share]) => cmin + share * (cmax - cmin)), colors = colorscale.map(([, color]) => channels(color));
  const channel = (i, share, which) => Math.round(colors[i - 1][which] + share * (colors[i][which] - colors[i - 1][which])) << (8 * which);
  return (value) => {
    if (!Number.isFinite(value)) return 0;
    let i = 1;
    while (i < at.length - 1 && at[i] <= value) i++;
    const share = at[i] > at[i - 1] ? Math.min(1, Math.max(0, (value - at[i - 1]) / (at[i] - at[i - 1]))) : 1;
    return channel(i, share, 0) | channel(i, share, 1) | channel(i, share, 2) | channel(i, share, 3);
  };
}

// What a redraw in place can't change; "" where it is no picture of cells alone.
function fixed({ data, layout }) {
  if (!data.every(({ type, texttemplate }) => type === "heatmap" && !texttemplate)) return "";
  const traces = data.map(({ z, name, text, ...rest }) => [z.length, z[0]?.length, rest]);
  const { meta, template: colors, annotations = [], shapes = [], ...rest } = layout;
  const words = annotations.map(({ text, ...place }) => place), lines = shapes.map(({ path, ...line }) => line);
  return JSON.stringify([traces, rest, words, lines]);
}

class Cells {
  constructor(plot) {
    this.plot = plot;
    this.forget();
  }

  forget() {
    this.known = [];
  }

  // Plotly has drawn what could not be drawn where it stands, or what was.
  drawn(shown) {
    // With what Plotly has written into the layout, and without: a step is laid over the one, another figure comes anew.
    this.known = [this.next, fixed(shown)];
    this.last = shown;
  }

  // Draws it where it stands, if that is possible.
  redrawn(shown) {
    const { data, layout } = shown, { plot, last } = this;
    this.next = fixed(shown);
    if (!this.next || !this.known.includes(this.next) || layout.template !== last.layout.template) return false;
    if (!plot._fullLayout?.coloraxis) return false; // Plotly has not drawn it yet
    const images = data.map(({ xaxis = "x", yaxis = "y" }) => plot.querySelector(`.subplot.${xaxis}${yaxis} .hm image`));
    const words = (layout.annotations ?? []).map(({ text }, i) => ({ text, i })).filter(({ text, i }) => text !== last.layout.annotations[i].text);
    const texts = words.map(({ i }) => plot.querySelector(`.annotation[data-index="${i}"] text`));
    const edges = (layout.shapes ?? []).map(({ path }, i) => ({ path, i })).filter(({ path, i }) => path !== last.layout.shapes[i].path);
    const lines = edges.map(({ i }) => plot.querySelector(`.shapelayer path[data-index="${i}"]`));
    if (!images.every((image) => image?.style.imageRendering === "pixelated")) return false;
    if (![...texts, ...lines].every(Boolean) || words.some(({ text }) => /[<&]/.test(text))) return false;
    const color = coloring(plot._fullLayout.coloraxis);
    data.forEach(({ z }, i) => { if (!same(z, last.data[i].z)) images[i].setAttribute("href", painted(z, color)); });
    words.forEach(({ text }, i) => { texts[i].textContent = text; });
    edges.forEach(({ path, i: number }, i) => lines[i].setAttribute("d", this.placed(path, layout.shapes[number])));
    this.last = shown;
    plot.data = data; // for who saves the picture
    return true;
  }

  // A path in pixels.
  placed(path, { xref, yref }) {
    const of = (ref) => this.plot._fullLayout[`${ref[0]}axis${ref.slice(1)}`], x = of(xref), y = of(yref);
    return path.replace(/([ML])([^,]+),([^ML]+)/g, (_, to, left, top) =>
      `${to}${x._offset + x.d2p(Number(left))},${y._offset + y.d2p(Number(top))}`);
  }
}

function same(rows, others) {
  return rows.every((row, r) => {
    const other = others[r];
    for (let c = 0; c < row.length; c++) if (row[c] !== other[c] && (row[c] === row[c] || other[c] === other[c])) return false;
    return true;
  });
}

// The picture of a grid, a pixel each cell.
function painted(z, color) {
  const canvas = Object.assign(document.createElement("canvas"), { width: z[0].length, height: z.length });
  const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  let at = 0;
  for (const row of z) for (let c = 0; c < row.length; c++) pixels[at++] = color(row[c]);
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}
