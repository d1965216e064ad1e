// Points of a figure that open another state of the page. `layout.meta` holds the label of each point and the address that a
// click follows; the customdata of a point, or of a cell of a map, is its index there.
import { emit, listen } from "../../web/assets/dom.js";

listen("paint", ({ target, detail }) => {
  const { words, addresses } = detail.layout.meta ?? {};
  if (!words || !addresses) return;
  const word = (place) => (typeof place === "number" ? words[place] : Array.from(place, word));
  const texts = ({ customdata }) => customdata && Array.from(customdata, word);
  detail.data = detail.data.map((trace) => ({ ...trace, text: texts(trace) }));
  // A plot has no `on` until Plotly has drawn it.
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
