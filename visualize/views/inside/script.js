// The stepper of a picture that carries frames (`layout.meta.groups`, see figures.py). Hovering marks all cells with a key.
import { listen, make } from "../../web/assets/dom.js";
import { written } from "../../web/assets/numbers.js";

export default function mountStepper(element) {
  const plot = element.closest(".tabitem").querySelector(".live-plot");
  const menu = element.querySelector("select"), slider = element.querySelector("input"), output = element.querySelector("output");
  const steps = [[element.querySelector(".back"), -1], [element.querySelector(".forward"), 1]];
  let groups = [], frame = null, marked = null;

  const clip = (number, { length }) => Math.max(0, Math.min(number, length - 1));

  // A plot is about to be drawn: put the chosen frame in its figure. A pinned plot has its own groups.
  function lay({ target, detail }) {
    const { meta, title, yaxis } = detail.layout;
    if (!meta?.groups || !element.parentNode.contains(target)) return;
    if (target === plot && groups !== meta.groups) {
      const chosen = menu.selectedIndex;
      ({ groups } = meta);
      menu.replaceChildren(...groups.map(({ name }) => make("option", {}, name)));
      menu.selectedIndex = clip(chosen, groups);
    }
    const { frames } = meta.groups[clip(menu.selectedIndex, meta.groups)], shown = frames[clip(Number(slider.value), frames)];
    detail.data = detail.data.map((trace, i) => ({ ...trace, ...shown.patches[i] }));
    // On a phone, a cell is narrower than its number.
    if (target.clientWidth < 700) for (const trace of detail.data) delete trace.texttemplate;
    detail.layout = { ...detail.layout, title: { ...title, text: shown.title }, yaxis: { ...yaxis, ...shown.yaxis } };
    if (target !== plot) return;
    frame = shown;
    marked = null;
    slider.max = frames.length - 1;
    output.textContent = `${written(frames.indexOf(frame) + 1)} of ${written(frames.length)}`;
    for (const [button, step] of steps) button.disabled = !frames[frames.indexOf(frame) + step];
  }

  // Mark the cells with the key of a cell, in the last traces of the figure: one for each map.
  function mark({ points: [{ curveNumber, pointIndex: [row, column] }] }) {
    const { keys } = frame, key = keys[curveNumber][row][column];
    if (key === marked || key < 0) return;
    marked = key;
    const cells = keys.map((map) => map.flatMap((line, y) => Array.from(line, (value, x) => (value === key ? [x, y] : [])).filter(({ length }) => length)));
    const traces = keys.map((_, i) => i + keys.length);
    window.Plotly.restyle(plot, { x: cells.map((all) => all.map(([x]) => x)), y: cells.map((all) => all.map(([, y]) => y)) }, traces);
  }

  listen("drawn", ({ target }) => {
    if (target !== plot || !frame) return;
    plot.removeAllListeners("plotly_hover");
    plot.on("plotly_hover", mark);
  });
  listen("paint", lay);
  listen("paint-pinned", lay);
  slider.addEventListener("input", () => plot.repaint());
  menu.addEventListener("input", () => {
    slider.value = 0;
    plot.repaint();
  });
  for (const [button, step] of steps) {
    button.addEventListener("click", () => {
      slider.value = Number(slider.value) + step;
      plot.repaint();
    });
  }
}
