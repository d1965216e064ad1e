// The page: an update fills its slots by name, and a message tells the server what a person set or pressed.
// A message goes through the outbox (see outbox.js); an update is `props.value` as JSON (see open_pages.py).
const PATIENCE = 8000; // milliseconds until a redraw whose reply was lost is given up
const FILLED = new Set(["html", "result"]); // kinds whose value is their HTML
const slots = new Map(); // name → a function that takes a value
const settings = {}; // what all controls are set to
let outbox = window.tilescopePost ? Promise.resolve() : new Promise((ready) => document.addEventListener("tilescope:outbox", ready, { once: true }));
let number = 0, awaited = 0, pending = null, patience = 0;

// One message after the other: the outbox holds one at a time.
function post(event, message) {
  outbox = outbox.then(() => {
    window.tilescopePost(event, message);
    return new Promise((sent) => setTimeout(sent));
  });
}

// Asks for a redraw. While one is awaited, only the latest request counts. `message` is made when it is sent.
function request(message) {
  if (awaited) {
    pending = message;
    return;
  }
  awaited = ++number;
  post("input", { ...message(), number: awaited });
  document.dispatchEvent(new CustomEvent("tilescope:awaited", { detail: true }));
  patience = setTimeout(proceed, PATIENCE);
}

function proceed() {
  clearTimeout(patience);
  awaited = 0;
  const next = pending;
  pending = null;
  if (next) request(next);
  else document.dispatchEvent(new CustomEvent("tilescope:awaited", { detail: false }));
}

const send = {
  settings,
  redraw() {
    request(() => {
      const { preset, ...rest } = settings; // a preset is clicked once
      delete settings.preset;
      return { settings: preset === undefined ? rest : { ...rest, preset } };
    });
  },
  follow: (query) => request(() => ({ follow: query })),
  act: (action, fields = {}) => post("submit", { action, settings, ...fields }),
  cancel: () => post("stop", {}),
};

// Takes an update. Redraws, streams and actions have a component each: of two values that one component gets within a
// frame, Gradio delivers the second alone.
window.tilescopeReceive = (text) => {
  if (!text) return;
  const update = JSON.parse(text);
  for (const [name, value] of Object.entries(update.slots)) slots.get(name)?.(value);
  if (update.reply_to && update.reply_to === awaited) proceed();
  if (update.has_more && !pending) post("play", {});
};

// What a reader has unfolded stays open.
function fill(node, html) {
  const open = [...node.querySelectorAll("details")].map((details) => details.open);
  node.innerHTML = html;
  node.querySelectorAll("details").forEach((details, i) => { details.open ||= open[i] ?? false; });
}

function mount(node) {
  const { kind } = node.dataset, watchers = [], slot = { value: "" };
  slots.set(node.id, (value) => {
    slot.value = value;
    if (FILLED.has(kind)) fill(node, value);
    else if (kind === "button") node.disabled = value === "disabled";
    else if (kind === "fold") node.open = value === "open";
    for (const watcher of watchers) watcher();
  });
  kinds[kind]?.(node, slot, (_, watcher) => watchers.push(watcher), send);
}

for (const name of given.needs_gpu) {
  const button = element.querySelector(`#${name}`);
  button.disabled = true;
  button.textContent += " (needs a GPU)";
}
element.querySelectorAll(".slot").forEach(mount);
element.addEventListener("click", ({ target }) => {
  const button = target.closest("button.slot");
  if (button?.id === "cancel") send.cancel();
  else if (button) send.act(button.id);
});
if (![...new URLSearchParams(location.search).keys()].some((name) => !name.startsWith("__"))) window.tilescopeReceive(props.value);
watch("value", () => window.tilescopeReceive(props.value));
request(() => ({ open: location.search, kept: localStorage.getItem("tilescope-run") ?? "" }));
