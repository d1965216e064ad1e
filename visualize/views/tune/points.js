// Points of a figure that open another state of the page: what each says, and the address that a click on it follows. The
// layout's meta has both, by the place that a point, or a cell of a map, carries.
function lay({ target, detail }) {
  const { words, addresses } = detail.layout.meta ?? {};
  if (!words || !addresses) return;
  const word = (place) => (typeof place === "number" ? words[place] : Array.from(place, word));
  const said = ({ customdata }) => customdata && Array.from(customdata, word);
  detail.data = detail.data.map((trace) => ({ ...trace, text: said(trace) }));
  queueMicrotask(() => listen(target, addresses)); // Plotly makes a plot a source of events when it draws it
}

function listen(plot, addresses) {
  const pointed = (on) => () => plot.classList.toggle("points", on);
  const events = {
    plotly_click: ({ points: [point] }) => {
      const address = addresses[point.customdata];
      if (address) emit("follow", address);
    },
    plotly_hover: pointed(true),
    plotly_unhover: pointed(false),
  };
  for (const [name, listener] of Object.entries(events)) {
    plot.removeAllListeners(name);
    plot.on(name, listener);
  }
}

document.addEventListener("tilescope:paint", lay);
