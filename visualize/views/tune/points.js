// Points of a figure that open another state of the page: what each says, and the address that a click on it follows. The
// layout's meta has both, by the place that a point, or a cell of a map, carries.
import { emit, listen } from "../../web/assets/dom.js";

listen("paint", ({ target, detail }) => {
  const { words, addresses } = detail.layout.meta ?? {};
  if (!words || !addresses) return;
  const word = (place) => (typeof place === "number" ? words[place] : Array.from(place, word));
  const texts = ({ customdata }) => customdata && Array.from(customdata, word);
  detail.data = detail.data.map((trace) => ({ ...trace, text: texts(trace) }));
  // Plotly makes a plot a source of events when it draws it.
  queueMicrotask(() => followClicks(target, addresses));
});

function followClicks(plot, addresses) {
  const points = (isOn) => () => plot.classList.toggle("points", isOn);
  const events = {
    plotly_click: ({ points: [point] }) => {
      const address = addresses[point.customdata];
      if (address) emit("follow", address);
    },
    plotly_hover: points(true),
    plotly_unhover: points(false),
  };
  for (const [name, listener] of Object.entries(events)) {
    plot.removeAllListeners(name);
    plot.on(name, listener);
  }
}
