// A form of knobs. Its value is JSON (see `form_value` in slots.py).
import { emit, fill, listen, message } from "./dom.js";
import { send, settings } from "./messages.js";

// Debounce: the time without a key before a typed number is sent.
const TYPING_MS = 400;

// field → error message
let problems = {};

// Shows each sentence next to the control that caused it, whose group opens, and those whose control is not visible above
// the picture.
export function showProblems(sentences = problems) {
  problems = sentences;
  const others = { ...problems };
  for (const field of document.querySelectorAll(".field")) {
    const name = field.dataset.field, group = field.closest("details");
    field.querySelector(".problem").textContent = others[name] ?? "";
    if (field.classList.toggle("wrong", name in others) && group) group.open = true;
    if (field.checkVisibility()) delete others[name];
  }
  const words = Object.values(others).join(" ");
  document.querySelector("#elsewhere").replaceChildren(words && message(words, { class: "problem", role: "alert" }));
  emit("problems");
}

function nearest(values, value) {
  const distances = values.map((stop) => Math.abs(stop - value));
  return Math.max(0, distances.indexOf(Math.min(...distances)));
}

// The value of a field's input.
function read(field, { type, value, selectedIndex }) {
  if (type === "select-one") return field.choices[selectedIndex];
  if (type === "range" && field.stops) return field.stops[value];
  return type === "text" || value === "" ? value : Number(value);
}

export default function mountForm(element) {
  const root = element.querySelector(".knobs");
  let form = { html: "", fields: [], values: {} }, busy = "";
  // The box whose value is not sent yet.
  let typing = null, timer = 0;

  function set(name, value) {
    if (form.values[name] === value) return;
    form.values[name] = settings[name] = value;
    busy = name;
    refresh();
    send.redraw();
  }
  // Back and forward replace what the user has set.
  addEventListener("popstate", () => {
    busy = "";
    wait(null);
  });

  function wait(box) {
    clearTimeout(timer);
    typing = box;
  }

  function apply(input) {
    const field = form.fields.find(({ name }) => name === input.closest(".field").dataset.field);
    wait(null);
    // The kernel may have changed.
    if (field) set(field.name, read(field, input));
  }

  // A text or a number is sent on Enter or when its box loses focus, because an unfinished one would be rejected or drawn.
  root.addEventListener("change", ({ target }) => apply(target));
  root.addEventListener("input", ({ target }) => {
    if (!["text", "number"].includes(target.type)) return apply(target);
    wait(target);
    if (target.type === "number") timer = setTimeout(apply, TYPING_MS, target);
  });

  // Esc presses the visible description (see page.js).
  for (const event of ["click", "pointerover", "focusin"]) {
    root.addEventListener(event, ({ target }) => root.classList.toggle("dismissed", target.matches(".help")));
  }

  function show({ name, kind, choices, stops, low, high, hidden }) {
    const row = root.querySelector(`[data-field="${name}"]`), [input, ...values] = row.querySelectorAll("input, select, output");
    const value = form.values[name];
    row.hidden = hidden;
    if (kind === "menu") input.selectedIndex = choices.indexOf(value);
    else if (kind === "text") {
      if (input !== typing) input.value = value;
    } else {
      [input.min, input.max] = stops ? [0, stops.length - 1] : [low, high];
      input.value = stops ? nearest(stops, value) : value;
      input.ariaValueText = value;
      for (const node of values) if (node !== typing && node.value !== String(value)) node.value = value;
    }
  }

  function refresh() {
    const summary = root.querySelector(".more > summary");
    form.fields.forEach(show);
    for (const button of root.querySelectorAll(".presets button")) button.textContent = form.presets[button.value];
    if (summary) summary.textContent = form.more;
  }

  listen("set", ({ detail: { name, value } }) => {
    if (!(name in form.values)) return;
    form.values[name] = value;
    refresh();
  });
  return (value) => {
    if (!value) return;
    const before = form, focused = root.querySelector(":focus");
    form = JSON.parse(value);
    // A value that the user is setting is newer than the server's.
    if (focused?.closest(".field")?.dataset.field !== busy) busy = "";
    if (busy in before.values && form.values.kernel === before.values.kernel) form.values[busy] = before.values[busy];
    if (form.html !== before.html) fill(root, form.html);
    refresh();
    // The focus moves to the new node once it has its value.
    if (focused) document.getElementById(focused.id)?.focus();
    for (const { name } of form.fields) settings[name] = form.values[name];
    root.dataset.ready = "true";
    showProblems();
  };
}
