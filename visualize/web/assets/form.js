// A form of knobs (see form.py). `props.value` is {fields, values, presets} as JSON.
const root = element.querySelector(".knobs");
let state = { fields: [], values: {}, presets: [] }; // values: of the fields
let built = "";

// What is set here is one of the page's settings (see settings.js).
function tell(values, isSet = false) {
  document.dispatchEvent(new CustomEvent("tilescope:told", { detail: { values, isSet } }));
}

function set(name, value) {
  if (state.values[name] === value) return;
  state.values[name] = value;
  props.value = JSON.stringify(state);
  hideIdle();
  summarize();
  for (const { cap, name: capped } of state.fields) if (cap?.includes(name)) root.querySelector(`[data-field="${capped}"]`).refresh();
  // Another kernel has other knobs, so the form itself will be replaced.
  if (name === "kernel") document.dispatchEvent(new Event("tilescope:chosen"));
  tell({ [name]: value }, true);
}

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// A knob that makes no difference to what is set has no control.
function hideIdle() {
  for (const { name, only_with: other } of state.fields) {
    const row = root.querySelector(`[data-field="${name}"]`);
    if (other && row) row.hidden = !other.values.includes(state.values[other.name]);
  }
}

// The values at which a field's slider stops. Powers of two beyond a cap would change nothing.
function stops(field) {
  if (field.kind === "steps") return field.choices;
  if (field.stops !== "powers") return null;
  const values = field.low === 0 ? [0] : [];
  const end = field.cap ? Math.min(field.high, Math.ceil(state.values[field.cap[0]] / state.values[field.cap[1]])) : field.high;
  for (let value = 1; value <= end; value *= 2) if (value >= field.low) values.push(value);
  return values;
}

function nearest(values, value) {
  let best = 0;
  values.forEach((v, i) => { if (Math.abs(v - value) < Math.abs(values[best] - value)) best = i; });
  return best;
}

function control(field) {
  const id = `${element.id}-${field.name}`;
  // A long name breaks after an underscore.
  const words = field.label.split(/(?<=_)/);
  const label = make("label", { for: id }, ...words.flatMap((word, i) => (i ? [make("wbr"), word] : [word])));
  const help = make("p", { class: "help", role: "tooltip", id: `${id}-help` }, field.kind === "number" ? `${field.help} ${field.low} to ${field.high}.` : field.help);
  const problem = make("p", { class: "problem", role: "alert" });
  const row = make("div", { class: `field ${field.kind}`, "data-field": field.name });
  if (field.kind === "menu") {
    const menu = make("select", { id, "aria-describedby": help.id });
    field.choices.forEach((choice, i) => menu.append(make("option", { value: i }, String((field.labels || field.choices)[i]))));
    menu.addEventListener("change", () => set(field.name, field.choices[Number(menu.value)]));
    row.append(label, menu, problem);
    if (field.note) row.append(make("p", { class: "note" }, field.note));
    row.append(help);
    row.refresh = () => { menu.value = field.choices.findIndex((c) => c === state.values[field.name]); };
    return row;
  }
  if (field.kind === "text") {
    // Set when it is left or Enter is pressed: half of it would be refused.
    const box = make("input", { type: "text", id, maxlength: field.longest, placeholder: field.placeholder ?? "", "aria-describedby": help.id, spellcheck: "false" });
    box.addEventListener("change", () => set(field.name, box.value));
    row.append(label, box, problem, help);
    row.refresh = () => { if (document.activeElement !== box) box.value = state.values[field.name]; };
    return row;
  }
  let values = stops(field);
  const slider = make("input", {
    type: "range", id: `${id}-slider`, "aria-label": `${field.label} slider`, "aria-describedby": help.id,
    min: values ? 0 : field.low, max: values ? values.length - 1 : field.high, step: 1,
  });
  const number = field.kind === "steps"
    ? make("output", { id, for: slider.id })
    : make("input", { type: "number", id, "aria-describedby": help.id });
  slider.addEventListener("input", () => {
    const value = values ? values[Number(slider.value)] : Number(slider.value);
    number.value = value;
    slider.setAttribute("aria-valuetext", value);
    set(field.name, value);
  });
  if (field.kind === "number") number.addEventListener("input", () => {
    const value = number.value === "" ? "" : Number(number.value);
    slider.value = values ? nearest(values, value) : value;
    set(field.name, value);
  });
  row.append(label, slider, number, problem, help);
  row.refresh = () => {
    const value = state.values[field.name];
    values = stops(field);
    if (values) slider.max = values.length - 1;
    slider.value = values ? nearest(values, value) : value;
    slider.setAttribute("aria-valuetext", value);
    if (String(number.value) !== String(value)) number.value = value;
  };
  return row;
}

// What is set less often is folded: the shape's menus, inputs and timer, and presets.
function groupOf({ name, kind, group }) {
  if (element.id !== "experiment" || name === "kernel" || name === "gpu") return group;
  return group === "Run" || kind === "menu" ? "more" : group;
}

function folded(name, title) {
  return make("details", { class: `knob-group ${name}` }, make("summary", {}, title));
}

function build() {
  const open = [...root.querySelectorAll("details[open]")].map((box) => box.className);
  root.replaceChildren();
  const groups = new Map();
  for (const field of state.fields) {
    const group = groupOf(field);
    if (!groups.has(group)) groups.set(group, group === "more" ? folded("more", "") : make("fieldset", { class: "knob-group" }, make("legend", {}, group)));
    groups.get(group).append(control(field));
  }
  root.append(...[...groups].filter(([name]) => name !== "more").map(([, box]) => box), ...[groups.get("more")].filter(Boolean));
  if (state.presets.length) {
    const box = folded("presets", "Presets");
    state.presets.forEach((title, i) => {
      const button = make("button", { type: "button" }, title);
      button.addEventListener("click", () => {
        document.dispatchEvent(new Event("tilescope:chosen"));
        tell({ preset: i }, true);
      });
      box.append(button);
    });
    root.append(box);
  }
  for (const box of root.querySelectorAll("details")) box.open = open.includes(box.className);
}

function summarize() {
  const summary = root.querySelector(".more > summary");
  const words = ["dtype", "layout", "precision"].filter((name) => !root.querySelector(`[data-field="${name}"]`)?.hidden);
  if (summary) summary.textContent = [...words.map((name) => state.values[name]).filter(Boolean), "more"].join(" · ");
}

function show() {
  if (!props.value) return;
  const next = JSON.parse(props.value);
  // What a person is setting just now is newer than what the server answers.
  const busy = document.activeElement?.closest(".field")?.dataset.field;
  if (root.contains(document.activeElement) && busy in state.values && next.values.kernel === state.values.kernel) {
    next.values[busy] = state.values[busy];
  }
  state = next;
  const shape = JSON.stringify([state.fields, state.presets]);
  if (shape !== built) {
    const focused = document.activeElement && root.contains(document.activeElement) ? document.activeElement.id : "";
    build();
    built = shape;
    if (focused) document.getElementById(focused)?.focus();
  }
  root.querySelectorAll(".field").forEach((row) => row.refresh());
  hideIdle();
  summarize();
  tell(Object.fromEntries(state.fields.map(({ name }) => [name, state.values[name]])));
  root.dataset.ready = "true";
  document.dispatchEvent(new Event("tilescope:form"));
}

watch("value", show);
show();
