// Keys of the whole page, and how it is shown: talk mode, the embed view and the theme (see page.py).
import { listen, onClick } from "./dom.js";

export default function mountKeys(element) {
  const dialog = element.querySelector("dialog"), styles = document.body.classList;
  const query = () => new URLSearchParams(location.search);

  // The address includes how the page is shown, so that a link reproduces it.
  function display(name, value) {
    const fields = query();
    if (value) fields.set(name, value); else fields.delete(name);
    history.replaceState(history.state, "", `${location.pathname}?${fields}`);
  }

  function talk(isOn) {
    for (const node of [document.documentElement, document.body]) node.classList.toggle("talk", isOn);
    display("talk", isOn && "1");
    element.querySelector(".to-talk").textContent = isOn ? "Leave talk mode" : "Talk mode";
  }

  const switchTalk = () => talk(!styles.contains("talk"));

  // Keys press buttons of the first visible player.
  function press(selector) {
    [...document.querySelectorAll(selector)].find((button) => button.checkVisibility())?.click();
  }

  const ACTIONS = {
    ArrowLeft: () => press(styles.contains("touring") ? ".tour .back" : ".player .back"),
    ArrowRight: () => press(styles.contains("touring") ? ".tour .next" : ".player .forward"),
    " ": () => press(".player .play"),
    f: () => (document.fullscreenElement ? document.exitFullscreen() : document.documentElement.requestFullscreen?.().catch(() => {})),
    t: switchTalk,
    q: () => document.querySelector("#share-dialog").showPopover(),
    "?": () => dialog.showPopover(),
    Escape: () => (styles.contains("touring") ? press(".tour .leave") : talk(false)),
  };

  function actionOf(key) {
    // Choices get letters, because their values are often numbers.
    const choice = 1 + "abcd".indexOf(key), view = document.querySelectorAll("#header [data-tabs]")[key - 1];
    if (choice && styles.contains("asked")) return () => press(`.choice:nth-child(${choice})`);
    return view && !styles.contains("asked") ? () => view.click() : ACTIONS[key];
  }

  // A field gets all keys; a button or a link gets the keys that press it.
  function belongsTo(node, key) {
    if (node.closest("input, select, textarea, [contenteditable=true], [role=slider], .pane pre")) return true;
    return (key === " " || key === "Enter") && node.closest("button, a[href], summary, [role=button]") !== null;
  }

  document.addEventListener("keydown", (event) => {
    const { key, target } = event, isModified = event.ctrlKey || event.metaKey;
    if (isModified && key === "Enter") {
      event.preventDefault();
      // A typed value is sent when its box loses focus.
      target.blur();
      document.querySelector("#run").click();
    }
    if (event.defaultPrevented || isModified || event.altKey || event.isComposing) return;
    if (styles.contains("embed") || document.querySelector(":popover-open:not(.message)") || belongsTo(target, key)) return;
    const action = actionOf(key.length === 1 ? key.toLowerCase() : key);
    if (!action) return;
    event.preventDefault();
    action();
  });

  onClick(".to-talk", switchTalk);
  // The glossary opens at the term.
  onClick(".term", (term) => setTimeout(() => [...document.querySelectorAll("#glossary dt")].find((each) => each.textContent === term.value).scrollIntoView()));
  onClick(".theme-switch", () => {
    const theme = styles.toggle("dark") ? "dark" : "light";
    display("__theme", theme);
    // The only value that the browser stores. A frame may have no storage.
    // oxlint-disable-next-line no-restricted-globals
    try { localStorage.theme = theme; } catch { /* not stored */ }
  });
  // The embed view links to the same state of the whole page, and talk mode says what the picture shows.
  listen("address", () => {
    element.querySelector(".on-stage").textContent = document.body.dataset.shown;
    const whole = query();
    for (const name of ["embed", "talk"]) whole.delete(name);
    element.querySelector(".open-whole").href = `${location.pathname}?${whole}`;
  });
  // Without a theme in the address, the page has the one that was chosen last.
  let theme = query().get("__theme");
  // oxlint-disable-next-line no-restricted-globals
  try { theme ??= localStorage.theme; } catch { /* not stored */ }
  if (theme) styles.toggle("dark", theme === "dark");
  styles.toggle("embed", query().get("embed") === "1");
  if (query().get("talk") === "1") talk(true);
}
