// The pinned figure beside a live plot's own (goes before plot.js, and uses what is there; see `with_twin` in plot.py).
let twin = null; // its node
let twinFigure = null;
let twinText = "";
const watching = [];
const twinConfig = { responsive: true, displayModeBar: false };

async function showTwin(text = "") {
  node.classList.toggle("lone", Boolean(text) && !JSON.parse(props.value).packed);
  if (text === twinText) return;
  twinText = text;
  if (!text) {
    if (twin) window.Plotly?.purge(twin);
    twin?.remove();
    watching.splice(0).forEach((one) => one.disconnect());
    twin = twinFigure = null;
    node.parentElement.classList.remove("twins");
    placed();
    if (figure) paint();
    return;
  }
  const content = JSON.parse(text);
  const next = unpacked(content, await inflated(content.packed));
  if (text !== twinText) return; // another one was pinned while this one was unpacked
  if (!twin) {
    twin = document.createElement("div");
    twin.className = "twin-plot";
    twin.setAttribute("role", "figure");
    twin.setAttribute("aria-label", `Pinned: ${node.getAttribute("aria-label")}`);
    node.after(twin);
    node.parentElement.classList.add("twins");
    placed();
    watching.push(new MutationObserver(paintTwin), new IntersectionObserver(fit));
    watching[0].observe(document.body, { attributes: true, attributeFilter: ["class"] });
    watching[1].observe(twin);
  }
  twinFigure = next;
  // Pictures of several maps stand one above the other, each in the whole width.
  node.parentElement.classList.toggle("stacked", "xaxis2" in next.layout);
  paintTwin();
  if (figure) paint();
}

// The row that holds plots with twins gives each a line of its own.
function placed() {
  const row = node.closest(".picture, .plots");
  row?.classList.toggle("with-twins", row.querySelector(".twins") !== null);
}

function paintTwin() {
  if (!twinFigure || !window.Plotly) return;
  const { data, layout } = twinFigure;
  layout.template = template();
  layout.autosize = true;
  sized(twinFigure);
  withoutBase(() => window.Plotly.react(twin, data, layout, twinConfig));
}

// What was drawn where nobody saw it had no width.
function fit(seen) {
  if (seen.at(-1).isIntersecting && twin?.data) window.Plotly.Plots.resize(twin);
}
