// A form of knobs (see slots.py). Its value is {fields, values, presets} as JSON.
import { emit, listen, make } from "./dom.js";
import { send, settings } from "./messages.js";

let problems = {}; // sentences by the field that caused them

// Shows each sentence next to the control that caused it, whose group opens, and those whose control is not visible above
// the picture.
export function showProblems(sentences = problems) {
  problems = sentences;
  const others = { ...problems };
  for (const field of document.querySelectorAll(".field")) {
    const { field: name } = field.dataset;
    field.querySelector(".problem").textContent = others[name] ?? "";
    const isWrong = name in others, group = field.closest("details");
    field.classList.toggle("wrong", isWrong);
    if (isWrong && group) group.open = true;
    if (field.checkVisibility()) delete others[name];
  }
  document.querySelector("#elsewhere .problem").textContent = Object.values(others).join(" ");
  emit("problems");
}

// The values at which a field's slider stops. Powers of two beyond a cap would change nothing.
export function stops({ kind, choices, stops: scale, low, high, cap }, values) {
  if (kind === "steps") return choices;
  if (scale !== "powers") return null;
  const end = cap ? Math.min(high, Math.ceil(values[cap[0]] / values[cap[1]])) : high;
  const powers = low === 0 ? [0] : [];
  for (let value = 1; value <= end; value *= 2) if (value >= low) powers.push(value);
  return powers;
}

function nearest(values, value) {
  const distances = values.map((stop) => Math.abs(stop - value));
  return Math.max(0, distances.indexOf(Math.min(...distances)));
}

export default function mountForm(element) {
  const root = element.querySelector(".knobs");
  let state = { fields: [], values: {}, presets: [] }, built = ""; // the fields and number of presets it was built for
  let controls = []; // of each field: its row, and how it takes a value

  function set(name, value) {
    if (state.values[name] === value) return;
    state.values[name] = settings[name] = value;
    refresh();
    send.redraw();
  }

  // Inputs by a field's kind: their nodes, and a function that makes them show a value.
  const INPUTS = {
    menu({ name, choices, labels = choices }, attributes) {
      const menu = make("select", attributes, ...labels.map((label, i) => make("option", { value: i }, String(label))));
      menu.addEventListener("change", () => set(name, choices[menu.value]));
      return [[menu], (value) => { menu.value = choices.indexOf(value); }];
    },
    text({ name, longest, placeholder = "" }, attributes) {
      const box = make("input", { ...attributes, type: "text", maxlength: longest, placeholder, spellcheck: "false" });
      // It is sent on Enter or when the box loses focus, because an unfinished text would be rejected.
      box.addEventListener("change", () => set(name, box.value));
      return [[box], (value) => { if (document.activeElement !== box) box.value = value; }];
    },
    number(field, attributes) {
      const number = make("input", { ...attributes, type: "number" });
      number.addEventListener("input", () => set(field.name, number.value === "" ? "" : Number(number.value)));
      return slider(field, attributes, number);
    },
    steps: (field, attributes) => slider(field, attributes, make("output", { id: attributes.id, for: `${attributes.id}-slider` })),
  };

  function slider(field, attributes, number) {
    const range = make("input", { ...attributes, type: "range", id: `${attributes.id}-slider`, "aria-label": `${field.label} slider`, step: 1 });
    range.addEventListener("input", () => set(field.name, stops(field, state.values)?.[range.value] ?? Number(range.value)));
    return [[range, number], (value) => {
      const values = stops(field, state.values);
      [range.min, range.max] = values ? [0, values.length - 1] : [field.low, field.high];
      range.value = values ? nearest(values, value) : value;
      range.setAttribute("aria-valuetext", value);
      if (String(number.value) !== String(value)) number.value = value;
    }];
  }

  function control(field) {
    const { name, kind, note, help } = field, id = `${element.id}-${name}`, tip = `${id}-help`;
    const words = field.label.split(/(?<=_)/); // a long name breaks after an underscore
    const [inputs, update] = INPUTS[kind](field, { id, "aria-describedby": tip });
    const row = make("div", { class: `field ${kind}`, "data-field": name },
      make("label", { for: id }, ...words.flatMap((word, i) => (i ? [make("wbr"), word] : [word]))),
      ...inputs,
      make("p", { class: "problem", role: "alert" }),
      ...(note ? [make("p", { class: "note" }, note)] : []),
      make("p", { class: "help", role: "tooltip", id: tip }, kind === "number" ? `${help} ${field.low} to ${field.high}.` : help));
    return { field, row, update };
  }

  // The group "more" is folded: the shape's menus, inputs and timer.
  function groupOf({ name, kind, group }) {
    if (element.id !== "experiment" || name === "kernel" || name === "gpu") return group;
    return group === "Run" || kind === "menu" ? "more" : group;
  }

  function build() {
    const open = [...root.querySelectorAll("details[open]")].map(({ className }) => className);
    controls = state.fields.map(control);
    const groups = Map.groupBy(controls, ({ field }) => groupOf(field)), more = groups.get("more");
    const presets = state.presets.map((title, value) => make("button", { type: "button", value }, title));
    groups.delete("more");
    root.replaceChildren(...[...groups].map(([group, members]) =>
      make("fieldset", { class: "knob-group" }, make("legend", {}, group), ...members.map(({ row }) => row))));
    for (const [name, title, members] of [["more", "", more?.map(({ row }) => row)], ["presets", "Presets", presets]]) {
      if (members?.length) root.append(make("details", { class: `knob-group ${name}` }, make("summary", {}, title), ...members));
    }
    for (const fold of root.querySelectorAll("details")) fold.open = open.includes(fold.className);
  }

  // Shows the values. A knob that makes no difference with them has no control.
  function refresh() {
    const { values } = state;
    for (const { field: { name, only_with: condition }, row, update } of controls) {
      update(values[name]);
      row.hidden = condition !== undefined && !condition.values.includes(values[condition.name]);
    }
    const numbers = controls.filter(({ field }) => field.kind === "number").map(({ field }) => String(values[field.name]).length);
    root.style.setProperty("--digits", Math.max(5, ...numbers)); // the width of all number boxes
    const summary = root.querySelector(".more > summary");
    const words = ["dtype", "layout", "precision"].filter((name) => values[name] && !controls.find(({ field }) => field.name === name)?.row.hidden);
    for (const button of root.querySelectorAll(".presets button")) button.textContent = state.presets[button.value];
    if (summary) summary.textContent = [...words.map((name) => values[name]), "more"].join(" · ");
  }

  listen("set", ({ detail: { name, value } }) => {
    if (!(name in state.values)) return;
    state.values[name] = value;
    refresh();
  });
  return (value) => {
    if (!value) return;
    const next = JSON.parse(value), { activeElement } = document;
    // A value that the user is setting is newer than the server's.
    const busy = root.contains(activeElement) ? activeElement.closest(".field")?.dataset.field : undefined;
    if (busy in state.values && next.values.kernel === state.values.kernel) next.values[busy] = state.values[busy];
    state = next;
    const shape = JSON.stringify([state.fields, state.presets.length]), focused = root.contains(activeElement) ? activeElement.id : "";
    if (shape !== built) build();
    refresh();
    if (shape !== built) document.getElementById(focused)?.focus(); // once it has its value
    built = shape;
    for (const { name } of state.fields) settings[name] = state.values[name];
    root.dataset.ready = "true";
    showProblems();
  };
}
