// The stepper of a picture with frames (`layout.meta.groups`, see figures.py): instructions, layouts or loops.
import { listen, make } from "../../web/assets/dom.js";
import { written } from "../../web/assets/numbers.js";

const WIDE = 13, HIGH = 7; // pixels of a cell with room for a number

export default function mountStepper(element) {
  const section = element.closest(".tabitem"), main = section.querySelector(".live-plot");
  const menu = element.querySelector("select"), slider = element.querySelector("input"), output = element.querySelector("output");
  const steps = [[element.querySelector(".back"), -1], [element.querySelector(".forward"), 1]];
  const shown = new Map(); // plot → its frame
  let groups = [];
  element.hidden = true;

  const clip = (number, { length }) => Math.max(0, Math.min(number, length - 1));

  // A plot is about to be drawn: put the chosen frame in its figure. A pinned plot has its own groups.
  function lay({ target, detail }) {
    const { meta, title, xaxis, yaxis } = detail.layout;
    if (!meta?.groups || !section.contains(target)) return;
    if (target === main && groups !== meta.groups) fillMenu(meta.groups);
    const { frames } = meta.groups[clip(menu.selectedIndex, meta.groups)], number = clip(Number(slider.value), frames), frame = frames[number];
    shown.set(target, frame);
    detail.data = detail.data.map((trace, i) => ({ ...trace, ...frame.patches[i] }));
    detail.layout = { ...detail.layout, title: { ...title, text: frame.title }, xaxis: { ...xaxis, ...frame.xaxis }, yaxis: { ...yaxis, ...frame.yaxis } };
    if (target !== main) return;
    for (const node of [slider, output, ...steps.map(([button]) => button)]) node.hidden = frames.length < 2;
    slider.max = frames.length - 1;
    output.textContent = `${written(number + 1)} of ${written(frames.length)}`;
    for (const [button, step] of steps) button.disabled = !frames[number + step];
  }

  function fillMenu(carried) {
    const chosen = menu.selectedIndex;
    groups = carried;
    menu.replaceChildren(...groups.map(({ name }) => make("option", {}, name)));
    menu.selectedIndex = clip(chosen, groups);
    element.hidden = groups.length * groups[0].frames.length < 2;
  }

  // Mark the cells with the same key as the given cell. The last traces of the figure hold the marks, one trace per heatmap.
  function mark(plot, { curveNumber, pointIndex: [row, column] }) {
    const { keys } = shown.get(plot), key = keys[curveNumber][row][column];
    if (key < 0 || plot.dataset.marked === String(key)) return;
    plot.dataset.marked = key;
    const cells = keys.map((map) => map.flatMap((line, y) => Array.from(line, (value, x) => value === key && [x, y]).filter(Boolean)));
    const along = (axis) => cells.map((all) => all.map((place) => place[axis]));
    window.Plotly.restyle(plot, { x: along(0), y: along(1) }, keys.map((_, i) => i + keys.length));
  }

  // Show numbers in cells that are large enough, also after a zoom.
  function numberCells(plot, { keys, numbers }) {
    const { xaxis, yaxis } = plot._fullLayout, size = ({ _length, range: [from, to] }) => _length / Math.abs(to - from);
    const texttemplate = size(xaxis) > WIDE && size(yaxis) > HIGH ? numbers : "";
    if (plot.data[0].texttemplate === texttemplate) return;
    window.Plotly.restyle(plot, { texttemplate, "textfont.size": Math.min(10, size(yaxis)) }, keys.map((_, i) => i));
  }

  listen("cleared", ({ target }) => { element.hidden ||= target === main; });
  listen("drawn", ({ target: plot }) => {
    const frame = shown.get(plot);
    if (!frame?.keys) return;
    numberCells(plot, frame);
    plot.removeAllListeners("plotly_hover");
    plot.on("plotly_hover", ({ points: [point] }) => mark(plot, point));
  });
  const repaint = () => { for (const plot of shown.keys()) plot.repaint(); };
  for (const event of ["paint", "paint-pinned"]) listen(event, lay);
  slider.addEventListener("input", repaint);
  menu.addEventListener("input", () => {
    slider.value = 0;
    repaint();
  });
  for (const [button, step] of steps) {
    button.addEventListener("click", () => {
      slider.value = Number(slider.value) + step;
      repaint();
    });
  }
}
