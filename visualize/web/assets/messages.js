// Messages to the server, and its updates. A message is an event of a Gradio component, whose value is the message as
// JSON (see page.py). An update is JSON with new values of slots (see redraw.py).
import { emit } from "./dom.js";
import { inflateFigure } from "./figures.js";

const PATIENCE_MS = 8000; // until the page asks again for a redraw whose reply was lost
const LATE_MS = 1000; // between updates of the address while a reply is late: if the server restarts, Gradio reloads the page

export const settings = {}; // the values of all controls
export const slots = new Map(); // name → a function that takes a value

let open = null; // called once messages can be sent
let sent = new Promise((connected) => { open = connected; });
let sendEvent = null;
let received = Promise.resolve(); // when the slots have the latest update
let number = 0;
let awaited = 0; // the number of the request in flight
let pending = null; // the next request
let patience = 0;
let late = 0;

export function connect(send) {
  sendEvent = send;
  open();
}

// One message after the other: the component holds one at a time.
export function post(event, message = {}) {
  sent = sent.then(() => {
    sendEvent(event, message);
    return new Promise((done) => setTimeout(done));
  });
}

// Requests a redraw. While a reply is awaited, only the latest request counts. `message` is called when it is sent.
export function request(message) {
  if (awaited) {
    pending = message;
    return;
  }
  awaited = ++number;
  emit("awaited", true);
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
  else emit("awaited", false);
}

export const send = {
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

// Takes an update. Redraws, streams and actions have a component each: Gradio delivers only the second of two values that
// one component gets within a frame. All slots are filled at once, so that the browser lays them out in one frame.
export function receive(text) {
  if (!text) return;
  const update = JSON.parse(text);
  const values = Promise.all(Object.entries(update.slots).map(read));
  // An update that failed must not stop the next ones.
  received = received.catch(reportError).then(async () => {
    for (const [name, value] of await values) slots.get(name)?.(value);
    if (update.reply_to && update.reply_to === awaited) proceed();
    if (update.has_more && !pending) post("play");
  });
}
