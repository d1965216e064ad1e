// The card of a run (see view.py), whose tiles the map of the program order marks (see marks.js). Results are greyed as soon
// as the controls differ from their experiment.
import { address, closeButton, emit, fill, listen } from "../../web/assets/dom.js";

// Names the first of a result's settings that differ from the current ones; "" if none does.
export function describeChanges(experiment, current) {
  const then = new URLSearchParams(experiment);
  if (then.get("kernel") !== current.get("kernel")) return then.get("kernel");
  const names = new Set(["gpu", ...then.keys()]);
  const changed = [...names].filter((name) => (current.get(name) ?? "") !== (then.get(name) ?? ""));
  if (!changed.length) return "";
  const [name] = changed, value = then.get(name);
  return `${value ? `${name} ${value}` : "default GPU"}${changed.length > 1 ? ", …" : ""}`;
}

export default function mountResult(element) {
  // The page's settings, while a run's tiles are marked.
  let marked = "";

  // The settings, except the open view and the player's step, which change no tile.
  function shownSettings() {
    const query = address();
    ["tab", "step"].forEach((name) => query.delete(name));
    return query.toString();
  }

  function markStale() {
    const current = address(), isRefused = document.querySelector("#experiment .field.wrong") !== null;
    if (!current.size) return;
    let isResultStale = false;
    for (const node of document.querySelectorAll("[data-experiment]:not(.pinned *)")) {
      const changes = describeChanges(node.dataset.experiment, current), isStale = isRefused || changes !== "";
      node.dataset.stale = changes && `Result for other settings (${changes}). Run to update.`;
      node.classList.toggle("stale", isStale);
      isResultStale ||= isStale && node.closest("#result") !== null;
    }
    // A pinned run's plots are never stale.
    const plots = document.querySelectorAll("#result-tab .slot:not(#predicted-plot) .live-plot");
    for (const plot of plots) plot.classList.toggle("stale", isResultStale);
  }

  const close = closeButton();

  function hide() {
    element.classList.remove("toast");
    close.remove();
  }

  function clear() {
    hide();
    if (marked) emit("marks", null);
    marked = "";
  }

  function show(html) {
    fill(element, html);
    // After the other slots of this update.
    queueMicrotask(markStale);
    const tiles = element.querySelector("[data-tiles]"), failure = element.querySelector(".failure");
    clear();
    if (!tiles && !failure) return;
    const box = element.getBoundingClientRect();
    if (failure || innerWidth <= 640 || box.top < 0 || box.bottom > innerHeight) {
      element.style.setProperty("--below", `${Math.max(0, document.querySelector("#header").getBoundingClientRect().bottom)}px`);
      element.classList.add("toast");
      element.append(close);
    }
    const experiment = element.querySelector("[data-experiment]")?.dataset.experiment;
    if (!tiles || describeChanges(experiment, address())) return;
    marked = shownSettings();
    emit("marks", JSON.parse(tiles.dataset.tiles));
  }

  element.addEventListener("click", hide);
  // The marks stay until the settings change or the reader uses the player.
  for (const name of ["click", "input"]) document.querySelector("#player").addEventListener(name, clear);
  listen("address", () => {
    markStale();
    if (marked && marked !== shownSettings()) clear();
  });
  listen("problems", markStale);
  return show;
}
