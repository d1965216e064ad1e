// Messages to the server, and its updates. A message is JSON. Its reply has a line of JSON for each update: new values by
// slot (see web/actions.py).
import { emit, notify } from "./dom.js";
import { inflateFigure } from "./figures.js";

const PAGE = Math.random().toString(36).slice(2);
// Debounce: the time without a change before the page requests slow follow-up work, such as a compile.
const QUIET_MS = 200;
// Polling interval for a new capture of the script.
const POLL_MS = 1000;
// Timeout after which a redraw without a reply is sent again.
const PATIENCE_MS = 30_000;
// Delay before a retry after a failure.
const RETRY_MS = 1000;

// The values of all controls.
export const settings = {};

// Name → a function that takes a value.
export const slots = new Map([
  ["redraw", () => send.redraw()],
  ["watch", (value) => {
    if (value) quiet = setTimeout(watch, value === "enabled" ? QUIET_MS : POLL_MS, value);
  }],
]);

// Resolves when the slots show the latest update.
let received = Promise.resolve();
// The address of the state that the page shows.
let shown = "";
// Whether a redraw is in flight.
let isAwaited = false;
// The next redraw to send.
let pending = null;
let quiet = 0;
let stream = new AbortController();

// Sends a message, with headers, and receives the updates of its reply.
let post = async (message, signal, headers) => {
  const route = new URL("../../messages.json", import.meta.url), body = JSON.stringify({ page: PAGE, ...message });
  const reply = await fetch(route, { method: "POST", body, signal, headers: { "Content-Type": "application/json", ...headers } });
  // The login has expired, or the server has a newer version of the page.
  if ([401, 404].includes(reply.status)) {
    emit("late");
    location.reload();
  }
  // The server would refuse it again.
  if ([400, 403, 413].includes(reply.status)) return notify(await reply.text());
  if (!reply.ok) throw new Error(await reply.text());
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    lines.forEach(receive);
  }
};

// Replaces `post` in a page without a server.
export function connect(reply) {
  post = reply;
}

// Requests a redraw. While a reply is awaited, only the latest request counts. `message` is called when it is sent.
export async function request(message) {
  pending = message;
  if (isAwaited) return;
  isAwaited = true;
  emit("awaited", true);
  for (let content = null; pending || content;) {
    content = pending?.() ?? content;
    pending = null;
    try {
      await post({ ...content, shown }, AbortSignal.timeout(PATIENCE_MS));
      await received;
      content = null;
    } catch {
      emit("late");
      await new Promise((go) => setTimeout(go, RETRY_MS));
    }
  }
  isAwaited = false;
  emit("awaited", false);
}

// Requests the slower parts of the open view, until a redraw replaces it.
async function watch(value) {
  const { signal } = stream = new AbortController();
  try {
    await post({ watch: value, settings }, signal);
  } catch {
    if (!signal.aborted) send.redraw();
  }
}

// On ZeroGPU, the hub's page around this one has headers that name the visitor, whose quota a run uses.
async function hubHeaders() {
  // Gradio asks the hub's page.
  if (!window.supports_zerogpu_headers) return {};
  const { port1, port2 } = new MessageChannel();
  window.parent.postMessage("zerogpu-headers", "https://huggingface.co", [port2]);
  port1.start();
  return new Promise((resolve) => { port1.addEventListener("message", (event) => resolve(event.data ?? {})); });
}

export const send = {
  redraw() {
    request(() => {
      const message = { settings: { ...settings } };
      // A preset applies once.
      delete settings.preset;
      return message;
    });
  },
  follow: (query) => request(() => ({ follow: query })),
  async act(action, fields = {}) {
    try {
      await post({ action, settings, ...fields }, null, await hubHeaders());
    } catch {
      notify("No reply from the server. Try again.");
    }
  },
};

// A slot's name and value, with figures inflated.
async function read([name, value]) {
  const isPlot = document.getElementById(name)?.dataset.kind === "plot";
  return [name, isPlot ? await Promise.all(value.split(" ").map(inflateFigure)) : value];
}

// Takes an update. All slots are filled at once, so that the browser lays them out in one frame.
export function receive(line) {
  const update = JSON.parse(line);
  // The page shows a new state, which supersedes follow-up work for the previous one.
  if (update.link) {
    shown = JSON.parse(update.link).full;
    clearTimeout(quiet);
    stream.abort();
  }
  const values = Promise.all(Object.entries(update).map(read));
  // An update that failed must not stop the next ones.
  received = received.then(async () => {
    for (const [name, value] of await values) slots.get(name)?.(value);
  }).catch(reportError);
}
