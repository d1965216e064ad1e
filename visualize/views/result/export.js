// Files of the current experiment: parts of replies of the API (see `export.py`). Its value is the experiment as JSON; without
// one, it is hidden.
import { saveFile } from "../../web/assets/files.js";

// Gradio takes a call's arguments with one request, and streams the reply to another.
async function call(endpoint, fields) {
  const address = `gradio_api/call/${endpoint}`, headers = { "Content-Type": "application/json" };
  const posted = await fetch(address, { method: "POST", headers, body: JSON.stringify({ data: [fields] }) });
  const { event_id: event } = await posted.json();
  const stream = await (await fetch(`${address}/${event}`)).text();
  const complete = stream.match(/event: complete\ndata: (.*)\n/);
  if (!complete) throw new Error(`/${endpoint} did not answer.`);
  const [reply] = JSON.parse(complete[1]);
  if (reply.failure) throw new Error(reply.failure.message);
  return reply;
}

export default function mountExport(element) {
  const status = element.querySelector(".save-status");
  let experiment = {};

  async function save({ endpoint, part, suffix }) {
    const reply = await call(endpoint, experiment), content = reply[part];
    const name = reply.filename.replace(/\.\w+$/, suffix);
    saveFile(name, typeof content === "string" ? content : JSON.stringify(content, null, 1));
    return `Saved ${name}.`;
  }

  element.addEventListener("click", async ({ target }) => {
    if (!target.matches("button")) return;
    target.disabled = true;
    status.textContent = "Waiting for the API …";
    const saved = save(target.dataset);
    status.textContent = await saved.catch(({ message }) => message);
    status.classList.toggle("problem", await saved.then(() => false, () => true));
    target.disabled = false;
  });
  return (value) => {
    element.hidden = value === "";
    experiment = JSON.parse(value || "{}");
  };
}
