// The page: mounts the slots, whose scripts take the values of updates and send messages.
import { fill, given, listen, onClick } from "./dom.js";
import { saveFile } from "./files.js";
import { receive, request, send, settings, slots } from "./messages.js";
import address from "./address.js";
import form, { showProblems } from "./form.js";
import header from "./header.js";
import keys from "./keys.js";
import plot from "./plot.js";
import share from "./share.js";
import "./table.js";
import tour from "./tour.js";
import listing from "../../views/memory/listing.js";
import scrubber from "../../views/memory/script.js";
import player from "../../views/order/player.js";
import result from "../../views/result/script.js";
import "../../views/order/timeline.js";
import "../../views/tune/points.js";

// By a slot's kind: a function that gets the slot's element, and returns a function that takes its values.
const KINDS = {
  form, keys, link: address, listing, plot, player, result, scrubber, share, tabs: header, tour,
  // Unchanged HTML stays, because the browser would lay out the page again.
  html(node) {
    let filled = null;
    return (html) => {
      if (filled !== html) fill(node, filled = html);
    };
  },

  button: (node) => (value) => { node.disabled = value === "disabled"; },
  fold: (node) => (value) => { node.open = value === "open"; },
  // The server writes the file when a button is pressed (see slots.save_file).
  saved_file: () => (value) => {
    const { name, text } = JSON.parse(value);
    saveFile(name, text);
  },
  settings: () => (value) => {
    for (const name of Object.keys(settings)) if (!["tab", "preset"].includes(name)) delete settings[name];
    Object.assign(settings, JSON.parse(value));
    document.querySelector("#opening")?.remove();
  },
  problems: () => (value) => showProblems(JSON.parse(value || "{}")),
};

// Menus close on a click elsewhere, after a choice, and on Escape, which no other script gets then. Escape also closes
// messages and descriptions of knobs.
const OPEN_MENUS = ":is(#header, .headline) details[open], .presets[open]";

function closeMenus() {
  document.addEventListener("click", ({ target }) => {
    for (const menu of document.querySelectorAll(OPEN_MENUS)) menu.open = menu.contains(target) && !target.closest("a, button");
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const open = [...document.querySelectorAll(`:is(${OPEN_MENUS}) > summary, .help, .close`)].findLast((node) => node.checkVisibility());
    if (!open) return;
    event.stopPropagation();
    open.click();
    open.focus();
  }, true);
}

// Starts the page in an element that has its HTML, with its first update and its constants.
export function start(element, update, constants) {
  Object.assign(given, constants);
  const line = element.querySelector("#awaited [role=progressbar]");
  // base.css shows it after a delay.
  listen("awaited", (event) => { line.hidden = !event.detail; });
  closeMenus();
  for (const name of given.needs_gpu) element.querySelector(`#${name}`).disabled = true;
  given.has_settings = [...new URLSearchParams(location.search).keys()].some((name) => !name.startsWith("__"));
  for (const node of element.querySelectorAll(".slot")) slots.set(node.id, KINDS[node.dataset.kind](node));
  onClick("p > .close", ({ parentNode }) => parentNode.remove());
  onClick("button.slot", (button) => send.act(button.id));
  if (update && !given.has_settings) receive(update);
  request(() => ({ open: location.search }));
}
