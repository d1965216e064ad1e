// Keys of the whole page, talk mode and the embed view (see keys.py).
const dialog = element.querySelector("dialog");
const whole = element.querySelector(".open-whole");
const shows = (name) => document.body.classList.contains(name);

// Talk mode stands in the address, so that a link opens it.
function talk(on) {
  for (const node of [document.documentElement, document.body]) node.classList.toggle("talk", on);
  const kept = new URLSearchParams(location.search);
  if (on) kept.set("talk", "1"); else kept.delete("talk");
  history.replaceState(history.state, "", `${location.pathname}?${kept}`);
  element.querySelector(".to-talk").textContent = on ? "Leave talk mode" : "Talk mode";
  addressed();
  dispatchEvent(new Event("resize"));
}

function fullscreen() {
  if (document.fullscreenElement) document.exitFullscreen();
  else document.documentElement.requestFullscreen?.().catch(() => {});
}

function say(name, detail) {
  document.dispatchEvent(new CustomEvent(`tilescope:${name}`, { detail }));
}

function tab(number) {
  document.querySelectorAll("#header [data-tabs]")[number - 1]?.click();
}

function step(by) {
  if (shows("touring")) say("tour", { by });
  else say("step", { by });
}

const ACTIONS = {
  ArrowLeft: () => step(-1),
  ArrowRight: () => step(1),
  " ": () => say("play"),
  f: fullscreen,
  t: () => talk(!shows("talk")),
  q: () => say("share"),
  "?": () => dialog.showModal(),
  Escape: () => { if (shows("touring")) say("tour", { leave: true }); else if (shows("talk")) talk(false); },
};

// Letters, as the answers are often numbers.
const CHOICES = [..."abcd"], TABS = [..."123456789"];

// Whose own keys these are: a field takes all of them, a button or a link those that press it, a tab the arrows.
function belongsTo(node, key) {
  if (node.closest("input, select, textarea, [contenteditable=true], [role=slider], .pane pre")) return true;
  if ((key === " " || key === "Enter") && node.closest("button, a[href], summary, [role=button], [role=tab]")) return true;
  return key.startsWith("Arrow") && node.closest("[role=tab]") !== null;
}

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (shows("embed") || document.querySelector("dialog[open]") || belongsTo(target, key)) return;
  const name = key.length === 1 ? key.toLowerCase() : key;
  const place = 1 + (shows("asked") ? CHOICES : TABS).indexOf(name);
  const action = place ? () => { if (shows("asked")) say("tour", { choose: place }); else tab(place); } : ACTIONS[name];
  if (!action) return;
  event.preventDefault();
  action();
});

// The embed view links to the same state of the whole page, and talk mode says what is on show.
function addressed() {
  element.querySelector(".on-stage").textContent = document.body.dataset.shown ?? "";
  const kept = new URLSearchParams(location.search);
  for (const name of ["embed", "talk"]) kept.delete(name);
  whole.href = `${location.pathname}?${kept}`;
}

for (const button of document.querySelectorAll(".open-keys, .show-keys")) button.addEventListener("click", () => dialog.showModal());
element.querySelector(".to-talk").addEventListener("click", () => { dialog.close(); talk(!shows("talk")); });
document.addEventListener("tilescope:address", addressed);
const asked = new URLSearchParams(location.search);
document.body.classList.toggle("embed", asked.get("embed") === "1");
if (asked.get("talk") === "1") talk(true);
addressed();
