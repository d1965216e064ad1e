// The page: an update fills its slots by name, and a message tells the server what a person set or pressed.
// A message goes through the outbox (see outbox.js); an update is `props.value` as JSON (see redraw.py).
const PATIENCE_MS = 8000; // until the page asks again for a redraw whose reply was lost
const LATE_MS = 1000; // between updates of the address while a reply is late: if the server restarts, Gradio reloads the page
const slots = new Map(); // name → a function that takes a value
let received = Promise.resolve(); // when the slots have the latest update
const settings = {}; // the values of all controls
const line = element.querySelector("#awaited [role=progressbar]");
let outbox = window.tilescopePost ? Promise.resolve() : new Promise((ready) => document.addEventListener("tilescope:outbox", ready, { once: true }));
let number = 0, awaited = 0, pending = null, patience = 0, late = 0;
let problems = {}; // sentences by the field that caused them

// Scripts tell each other of changes by events of the document.
function emit(name, detail) {
  document.dispatchEvent(new CustomEvent(`tilescope:${name}`, { detail }));
}

const written = (value) => value.toLocaleString("en");
const counted = (count, noun) => `${written(count)} ${noun}${count === 1 ? "" : "s"}`;

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// What the page remembers between visits. In a frame of another site or a private window, browsers may refuse the storage:
// then it remembers nothing.
const memory = {
  read(name) {
    try { return localStorage.getItem(`tilescope-${name}`) ?? ""; } catch { return ""; }
  },
  write(name, value) {
    try { localStorage.setItem(`tilescope-${name}`, value); } catch { /* refused, or full */ }
  },
};

// Shows a few words for a moment, above everything else.
function notify(words) {
  const message = document.body.appendChild(make("p", { class: "message", role: "status", popover: "manual" }, words));
  message.showPopover();
  setTimeout(() => message.remove(), 4000);
}

// Menus close on a click elsewhere, after a choice, and on Escape, which no other script gets then.
const OPEN_MENUS = ":is(#header, .headline) details[open], .presets[open]";

document.addEventListener("click", ({ target }) => {
  for (const menu of document.querySelectorAll(OPEN_MENUS)) menu.open = menu.contains(target) && !target.closest("a, button");
});
document.addEventListener("keydown", (event) => {
  const menu = event.key === "Escape" && [...document.querySelectorAll(OPEN_MENUS)].at(-1);
  if (!menu) return;
  event.stopPropagation();
  menu.open = false;
  menu.querySelector("summary").focus();
}, true);

function onClick(selector, action) {
  document.addEventListener("click", (event) => {
    const node = event.target.closest?.(selector);
    if (node) action(node, event);
  });
}

// One message after the other: the outbox holds one at a time.
function post(event, message) {
  outbox = outbox.then(() => {
    window.tilescopePost(event, message);
    return new Promise((sent) => setTimeout(sent));
  });
}

function setAwaited(value) {
  line.hidden = !value; // base.css shows it if the reply takes longer than most
  emit("awaited", value);
}

// Asks for a redraw. While one is awaited, only the latest request counts. `message` is made when it is sent.
function request(message) {
  if (awaited) {
    pending = message;
    return;
  }
  awaited = ++number;
  setAwaited(true);
  late = setInterval(emit, LATE_MS, "late");
  ask({ ...message(), number: awaited });
}

// The same number again: a slow reply to the first message will do.
function ask(message) {
  post("input", message);
  patience = setTimeout(() => (pending ? proceed() : ask(message)), PATIENCE_MS);
}

function proceed() {
  clearTimeout(patience);
  clearInterval(late);
  awaited = 0;
  const next = pending;
  pending = null;
  if (next) request(next);
  else setAwaited(false);
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
};

// A slot's name and value, with figures inflated.
async function read([name, value]) {
  const isPlot = document.getElementById(name)?.dataset.kind === "plot";
  return [name, isPlot ? await Promise.all(value.split(" ").map(inflateFigure)) : value];
}

// Takes an update. Redraws, streams and actions have a component each: of two values that one component gets within a
// frame, Gradio delivers the second alone. All slots are filled at once, so that the browser lays them out in one frame.
window.tilescopeReceive = (text) => {
  if (!text) return;
  const update = JSON.parse(text), values = Promise.all(Object.entries(update.slots).map(read));
  received = received.catch(reportError).then(async () => { // an update that failed must not stop the next ones
    for (const [name, value] of await values) slots.get(name)?.(value);
    if (update.reply_to && update.reply_to === awaited) proceed();
    if (update.has_more && !pending) post("play", {});
  });
};

// Details that a reader has opened stay open.
function fill(node, html) {
  const open = [...node.querySelectorAll("details")].map((details) => details.open);
  node.innerHTML = html;
  node.querySelectorAll("details").forEach((details, i) => { details.open ||= open[i] ?? false; });
}

// Shows each sentence next to the control that caused it (see form.js), whose group opens, and those whose control is not
// visible above the picture.
function showProblems() {
  const others = { ...problems };
  for (const field of document.querySelectorAll(".field")) {
    const { field: name } = field.dataset;
    field.querySelector(".problem").textContent = others[name] ?? "";
    const isWrong = name in others, group = field.closest("details");
    field.classList.toggle("wrong", isWrong);
    if (isWrong && group) group.open = true;
    if (field.checkVisibility()) delete others[name];
  }
  element.querySelector("#elsewhere .problem").textContent = Object.values(others).join(" ");
  emit("problems");
}

// What the values of a kind of slot do beside its script.
const FILL = {
  html(node, html) { // unchanged HTML stays, because the page would be laid out again
    if (node.filled !== html) fill(node, html);
    node.filled = html;
  },
  result: fill,
  button: (node, value) => { node.disabled = value === "disabled"; },
  fold: (node, value) => { node.open = value === "open"; },
  stored_run: (_, run) => memory.write("run", run), // for the next visit
  saved_file(node, value) { // the server wrote it when a button was pressed (see tables.py)
    const { id, name, type, text } = JSON.parse(value || "{}");
    if (!name || node.dataset.file === String(id)) return; // an action's last update repeats its values
    node.dataset.file = id;
    saveFile(name, type, text);
  },
  settings(_, value) {
    for (const name of Object.keys(settings)) if (!["tab", "preset"].includes(name)) delete settings[name];
    Object.assign(settings, JSON.parse(value));
  },
  problems(_, value) {
    problems = JSON.parse(value || "{}");
    showProblems();
  },
};

function mount(node) {
  const { kind } = node.dataset, watchers = [], slot = { value: "" };
  slots.set(node.id, (value) => {
    slot.value = value;
    FILL[kind]?.(node, value);
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
onClick("button.slot", ({ id }) => (id === "cancel" ? post("stop", {}) : send.act(id)));
if (![...new URLSearchParams(location.search).keys()].some((name) => !name.startsWith("__"))) window.tilescopeReceive(props.value);
watch("value", () => window.tilescopeReceive(props.value));
request(() => ({ open: location.search, stored_run: memory.read("run") }));
