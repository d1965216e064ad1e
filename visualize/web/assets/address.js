// The page's address (see redraw.py). Its value is {full, short, title, shows}: every field, the fields that differ from their
// defaults, the kernel, problem and GPU, and of a script words for the style sheets.
import { emit, given, listen, notify, onClick } from "./dom.js";
import { send, settings } from "./messages.js";

export default function mountAddress() {
  const DISPLAY = ["__theme", "talk", "embed"]; // how the page is shown
  const LEADS = ["tour", "stop"]; // the stop of a guided tour: it remains until a link leads elsewhere
  const newer = new Set(); // fields that a picture has set: a reply to an earlier request has their older values
  let lead = new URLSearchParams(location.search);
  let full = new URLSearchParams(), short = new URLSearchParams();
  let source = ""; // of a script, words for the style sheets
  let isStep = false; // Back should undo the next change
  let isBack = false; // Back or Forward has changed the address already

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
    const shown = new URLSearchParams(short), now = new URLSearchParams(location.search), { dataset } = document.body;
    for (const name of DISPLAY) if (now.has(name)) shown.set(name, now.get(name));
    for (const name of LEADS) if (lead.has(name)) shown.set(name, lead.get(name));
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
    const query = isAtStop ? new URLSearchParams([...lead].filter(([name]) => LEADS.includes(name))) : short;
    dataset.link = `${given.base || `${location.origin}${location.pathname}`}?${query}`;
    emit("address");
  }

  onClick('a[href^="?"]', (link, event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    emit("follow", link.getAttribute("href").slice(1));
  });
  onClick(".presets button", ({ value }) => {
    isStep = true;
    settings.preset = Number(value);
    send.redraw();
  });
  addEventListener("popstate", () => {
    isBack = true;
    follow(location.search.slice(1));
  });
  listen("follow", ({ detail }) => {
    isStep = true;
    follow(detail);
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
    const changed = [...full.keys()].filter((name) => String(settings[name] ?? full.get(name)) !== full.get(name));
    for (const name of changed) set(name, settings[name]);
    if (changed.length) write();
  });
  listen("stop", tell);
  return (text) => {
    const value = JSON.parse(text), before = full;
    [full, short] = [new URLSearchParams(value.full), new URLSearchParams(value.short)];
    document.body.dataset.shown = value.title;
    source = value.shows;
    if (before.size && full.has("with") && !before.has("with") && !document.body.matches(".touring")) notify("Pinned. Change a setting to compare.");
    if (before.size && ["tab", "kernel"].some((name) => before.get(name) !== full.get(name))) isStep = true;
    for (const name of newer) {
      const latest = settings[name];
      if (full.has(name) && latest !== undefined && full.get(name) !== String(latest)) set(name, latest);
    }
    write();
  };
}
