// Files of the current experiment (see `ExportPanel`). Its value is the experiment as JSON.
import { fileName, saveFile } from "../../web/assets/files.js";

const NOT_OFFERED = ["/script", "/trace", "/sweep"]; // endpoints with a button of their own, and a slow one

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
  const menu = element.querySelector("select"), status = element.querySelector(".save-status");
  let experiment = ""; // as JSON

  // The endpoints that need an experiment and nothing else.
  async function listEndpoints() {
    const { named_endpoints: all } = await (await fetch("gradio_api/info")).json();
    const needsMore = ([first, ...others]) => first?.parameter_name !== "experiment" || others.some((other) => !other.parameter_has_default);
    const offered = Object.keys(all).filter((name) => !NOT_OFFERED.includes(name) && !needsMore(all[name].parameters));
    menu.replaceChildren(...offered.map((name) => new Option(name, name.slice(1))));
  }

  // Returns the name, the type and the content of a file.
  async function makeFile(kind, fields) {
    if (kind === "json") {
      const name = fileName(`${fields.kernel} ${menu.value}`);
      return [`${name}.json`, "application/json", JSON.stringify(await call(menu.value, fields), null, 1)];
    }
    const { filename, ...reply } = await call(kind === "trace" ? "trace" : "script", fields);
    if (kind === "script") return [filename, "text/x-python", reply.script];
    const name = kind === "notebook" ? filename.replace(/\.py$/, ".ipynb") : filename;
    return [name, "application/json", JSON.stringify(reply[kind], null, kind === "notebook" ? 1 : 0)];
  }

  element.addEventListener("click", async ({ target }) => {
    const kind = target.closest("button")?.dataset.file;
    if (!kind || !experiment) return;
    target.disabled = true;
    status.textContent = "Waiting for the API …";
    try {
      const file = await makeFile(kind, JSON.parse(experiment));
      saveFile(...file);
      status.textContent = `Saved ${file[0]}.`;
      status.classList.remove("problem");
    } catch (error) {
      status.textContent = error.message;
      status.classList.add("problem");
    }
    target.disabled = false;
  });
  listEndpoints();
  return (value) => { experiment = value; };
}
