// Elements and events of the page, and what it remembers.

// The constants of this page, from the server (see page.py).
export const given = {};

// Scripts tell each other of changes by events of the document, or of a plot.
export function emit(name, detail, target = document) {
  target.dispatchEvent(new CustomEvent(`tilescope:${name}`, { bubbles: true, detail }));
}

export function listen(name, action) {
  document.addEventListener(`tilescope:${name}`, action);
}

export function onClick(selector, action) {
  document.addEventListener("click", (event) => {
    const node = event.target.closest?.(selector);
    if (node) action(node, event);
  });
}

export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Details that a reader has opened stay open.
export function fill(node, html) {
  const before = node.querySelectorAll("details");
  node.innerHTML = html;
  node.querySelectorAll("details").forEach((details, i) => { details.open ||= before[i]?.open; });
}

export function setBox(node, box) {
  for (const [name, pixels] of Object.entries(box)) node.style[name] = `${pixels}px`;
}

export const isDark = () => document.body.classList.contains("dark");
export const isStill = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// The page's current settings, as a query.
export const address = () => new URLSearchParams(document.body.dataset.address);

// The button of a message, which Escape presses, too (see page.js).
export const closeButton = () => make("button", { type: "button", class: "close", "aria-label": "Close" }, "✕");

// A message until it is closed.
export const message = (words, attributes) => make("p", attributes, closeButton(), words);

// Shows a short message for a moment, above everything else.
export function notify(words) {
  const note = message(words, { class: "message", role: "status", popover: "manual" });
  document.querySelector(".main").append(note);
  note.showPopover();
  setTimeout(() => note.remove(), 4000);
}
