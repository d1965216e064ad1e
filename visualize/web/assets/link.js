// The page's address (see link.py). `props.value` is {full, short, title}: every field, those that differ from the
// defaults, and what is on show.
const copy = element.querySelector(".copy-link");
const KEPT = ["__theme", "talk", "embed"]; // how the page is shown, which is no field of it
const LEADS = ["tour", "stop"]; // where a guided tour stands: kept until a link leads elsewhere
let held = new URLSearchParams(location.search);
let full = new URLSearchParams(), short = new URLSearchParams();
let chosen = false; // a step that Back should undo is under way
let returning = false; // Back or Forward has brought us here: the address is there already

function address() {
  const shown = new URLSearchParams(short), now = new URLSearchParams(location.search);
  for (const name of KEPT) if (now.has(name)) shown.set(name, now.get(name));
  for (const name of LEADS) if (held.has(name)) shown.set(name, held.get(name));
  return shown;
}

function read() {
  if (!props.value) return false;
  const value = JSON.parse(props.value);
  const before = full;
  full = new URLSearchParams(value.full);
  short = new URLSearchParams(value.short);
  document.body.dataset.shown = value.title ?? document.body.dataset.shown ?? "";
  if (before.size && before.get("tab") !== full.get("tab")) chosen = true;
  return true;
}

// Opens another state of the page without a reload.
function follow(query) {
  held = new URLSearchParams(query);
  document.dispatchEvent(new Event("tilescope:followed"));
  send.follow(query);
}

function write() {
  if (!read()) return;
  const url = `${location.pathname}?${address()}`, keep = returning || !chosen || !document.body.dataset.address;
  if (keep) history.replaceState(history.state, "", url);
  else history.pushState(null, "", url);
  chosen = returning = false;
  document.body.dataset.address = full.toString();
  tell();
}

// The link to what is shown: in a tour, as long as nothing was changed, the stop stands for all fields.
function tell() {
  const atStop = held.has("tour") && document.body.dataset.stop === short.toString();
  const query = atStop ? new URLSearchParams(LEADS.filter((name) => held.has(name)).map((name) => [name, held.get(name)])) : short;
  document.body.dataset.link = `${given.base || `${location.origin}${location.pathname}`}?${query}`;
  document.dispatchEvent(new Event("tilescope:address"));
}

copy.addEventListener("click", () => window.tilescopeFiles.copyText(copy, document.body.dataset.link));
document.addEventListener("click", (event) => {
  const link = event.target.closest?.('a[href^="?"]');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  chosen = true;
  follow(link.getAttribute("href").slice(1));
});
document.addEventListener("tilescope:chosen", () => { chosen = true; });
addEventListener("popstate", () => {
  returning = true;
  follow(location.search.slice(1));
});
element.querySelector(".theme-switch").addEventListener("click", () => {
  const dark = document.body.classList.toggle("dark");
  const kept = new URLSearchParams(location.search);
  kept.set("__theme", dark ? "dark" : "light");
  history.replaceState(history.state, "", `${location.pathname}?${kept}`);
});
document.addEventListener("tilescope:set", ({ detail }) => {
  full.set(detail.name, detail.value);
  short.set(detail.name, detail.value);
  props.value = JSON.stringify({ full: full.toString(), short: short.toString() });
  write();
});
document.addEventListener("tilescope:follow", ({ detail }) => { chosen = true; follow(detail); });
document.addEventListener("tilescope:stop", tell);
watch("value", write);
write();
