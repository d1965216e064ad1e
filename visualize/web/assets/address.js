// The page's address (see redraw.py). Its value is {full, short, title, shows}: every field, the fields that differ from their
// defaults, the kernel, problem and GPU, and of a script words for the style sheets.
import { emit, given, listen, onClick } from "./dom.js";
import { send, settings } from "./messages.js";

export default function mountAddress() {
  // Display options.
  const DISPLAY = ["__theme", "talk", "embed"];
  // The stop of a guided tour, which remains until the reader follows another link.
  const LEADS = ["tour", "stop"];
  // Fields that a picture has set. A reply to an earlier request still has their old values.
  const newer = new Set();
  let lead = new URLSearchParams(location.search);
  let full = new URLSearchParams(), short = new URLSearchParams();
  // A script's words for the style sheets.
  let source = "";
  // Whether Back should undo the next change.
  let isStep = false;
  // Whether Back or Forward has already changed the address.
  let isBack = false;

  const pick = (query, names) => [...query].filter(([name]) => names.includes(name));

  // Opens another state of the page without a reload.
  function follow(query) {
    lead = new URLSearchParams(query);
    emit("followed");
    send.follow(query);
  }

  function set(name, value) {
    settings[name] = value;
    for (const query of [full, short]) query.set(name, value);
  }

  function write() {
    const now = new URLSearchParams(location.search), { dataset } = document.body;
    const shown = new URLSearchParams([...short, ...pick(now, DISPLAY), ...pick(lead, LEADS)]);
    const change = isStep && !isBack && dataset.address ? "pushState" : "replaceState";
    try { history[change](history.state, "", `${location.pathname}?${shown}`); } catch { /* refused in a frame without a URL */ }
    isStep = isBack = false;
    dataset.address = full.toString();
    // Style sheets use only these fields: matching the whole address would restyle the page after each change.
    dataset.shows = [full.get("picture"), full.get("model"), full.has("with") && "pin", source].filter(Boolean).join(" ");
    tell();
  }

  // The link to the page. At an unchanged stop of a tour, it names the stop instead of the fields.
  function tell() {
    const { dataset } = document.body, isAtStop = lead.has("tour") && dataset.stop === short.toString();
    const query = isAtStop ? new URLSearchParams(pick(lead, LEADS)) : short;
    dataset.link = `${given.base || location.origin + location.pathname}?${query}`;
    emit("address");
  }

  onClick('a[href^="?"]', (link, event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    emit("follow", link.getAttribute("href").slice(1));
  });
  onClick(".skip", () => document.querySelector("#results").focus());
  onClick(".presets button", (button) => {
    isStep = true;
    settings.preset = Number(button.value);
    send.redraw();
  });
  addEventListener("popstate", () => {
    isBack = true;
    follow(location.search.slice(1));
  });
  listen("follow", (event) => {
    isStep = true;
    follow(event.detail);
  });
  // A picture has set a field; with `redraw`, the server draws a new one.
  listen("set", ({ detail: { name, value, redraw } }) => {
    const isNew = settings[name] !== value;
    newer.add(name);
    set(name, value);
    if (isNew && redraw) send.redraw();
    write();
  });
  listen("late", () => {
    const changed = [...full].filter(([name, value]) => String(settings[name] ?? value) !== value);
    for (const [name] of changed) set(name, settings[name]);
    if (changed.length) write();
  });
  listen("stop", tell);
  return (text) => {
    const value = JSON.parse(text), before = full;
    [full, short] = [new URLSearchParams(value.full), new URLSearchParams(value.short)];
    document.body.dataset.shown = value.title;
    source = value.shows;
    isStep ||= before.size && ["tab", "kernel"].some((name) => before.get(name) !== full.get(name));
    for (const name of newer) if (full.has(name) && name in settings && full.get(name) !== String(settings[name])) set(name, settings[name]);
    write();
  };
}
