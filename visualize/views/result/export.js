// Files of the Experiment that is set (see `ExportPanel`). `props.value` is that Experiment as JSON.
const menu = element.querySelector("select");
const said = element.querySelector(".said");

// The API's reply to some arguments: Gradio posts them, and streams the answer.
async function asked(name, payload) {
  const address = `gradio_api/call/${name}`;
  const posted = await fetch(address, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ data: [payload] }),
  });
  const { event_id: event } = await posted.json();
  const stream = await (await fetch(`${address}/${event}`)).text();
  const complete = stream.match(/event: complete\ndata: (.*)\n/);
  if (!complete) throw new Error(`/${name} did not answer.`);
  const [reply] = JSON.parse(complete[1]);
  if (reply.failure) throw new Error(reply.failure.message);
  return reply;
}

// The endpoints that need an Experiment and nothing else.
async function listed() {
  const { named_endpoints: all } = await (await fetch("gradio_api/info")).json();
  const takes = ([, { parameters: [first, ...others] }]) =>
    first?.parameter_name === "experiment" && others.every((one) => one.parameter_has_default);
  const left = ["/script", "/trace", "/sweep"]; // the first two have buttons of their own, the last takes minutes
  const names = Object.entries(all).filter(takes).map(([name]) => name).filter((name) => !left.includes(name));
  menu.replaceChildren(...names.map((name) => new Option(name, name.slice(1))));
}

const FILES = {
  async script(experiment) {
    const { filename, script } = await asked("script", experiment);
    return [filename, "text/x-python", script];
  },
  async notebook(experiment) {
    const { filename, notebook } = await asked("script", experiment);
    return [filename.replace(/\.py$/, ".ipynb"), "application/x-ipynb+json", JSON.stringify(notebook, null, 1)];
  },
  async trace(experiment) {
    const { filename, trace } = await asked("trace", experiment);
    return [filename, "application/json", JSON.stringify(trace)];
  },
  async json(experiment) {
    const reply = await asked(menu.value, experiment);
    return [`${window.tilescopeFiles.fileName(`${experiment.kernel} ${menu.value}`)}.json`, "application/json", JSON.stringify(reply, null, 1)];
  },
};

element.addEventListener("click", async ({ target }) => {
  const wanted = target.closest("button")?.dataset.file;
  if (!wanted || !props.value) return;
  target.disabled = true;
  said.classList.remove("problem");
  said.textContent = "Asking the API …";
  try {
    const file = await FILES[wanted](JSON.parse(props.value));
    window.tilescopeFiles.saveFile(...file);
    said.textContent = `Saved ${file[0]}.`;
  } catch (error) {
    said.classList.add("problem");
    said.textContent = error.message;
  } finally {
    target.disabled = false;
  }
});
listed();
