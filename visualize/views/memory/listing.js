// Texts beside each other (see compiler.py). `props.value` is {panes: [{name, lines}], operations: [{label, marks}]},
// or "none" where there will be none.
const root = element.querySelector(".listing");
let chosen = 0;
let asked = 0; // the operation that the address has named last
let sought = "";
const at = {};

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const panes = () => [...root.querySelectorAll(".pane")];

function reveal(text, line) {
  const node = text.children[line];
  if (node) text.scrollTop = node.offsetTop - text.clientHeight / 3;
}

// Marks the lines of the chosen operation in every pane, and shows the first of them.
function mark(operations) {
  for (const pane of panes()) {
    const text = pane.querySelector("pre");
    const lines = operations[chosen]?.marks[pane.dataset.name] ?? [];
    text.querySelectorAll(".marked").forEach((node) => node.classList.remove("marked"));
    lines.forEach((line) => text.children[line]?.classList.add("marked"));
    pane.querySelector(".count").textContent = `${lines.length} line${lines.length === 1 ? "" : "s"} marked`;
    if (lines.length) reveal(text, lines[0]);
  }
}

// Finds what is typed in every pane; again (Enter) shows the next place in each.
function search(again) {
  for (const pane of panes()) {
    const text = pane.querySelector("pre");
    const found = [];
    [...text.children].forEach((node, line) => {
      const here = sought !== "" && node.textContent.toLowerCase().includes(sought);
      node.classList.toggle("found", here);
      if (here) found.push(line);
    });
    const name = pane.dataset.name;
    at[name] = again && found.length ? ((at[name] ?? -1) + 1) % found.length : 0;
    if (found.length) reveal(text, found[at[name]]);
    if (sought) pane.querySelector(".count").textContent = `${found.length} found`;
  }
}

function draw() {
  root.classList.toggle("none", props.value === "none");
  if (!props.value || props.value === "none") { root.replaceChildren(); return; }
  const { panes: texts, operations, wanted } = JSON.parse(props.value);
  chosen = Math.min(wanted === asked ? chosen : wanted, operations.length - 1);
  asked = wanted;
  const menu = make("select", { "aria-label": "memory operation" });
  operations.forEach(({ label }, place) => menu.append(make("option", { value: place }, label)));
  menu.value = chosen;
  menu.addEventListener("change", () => { chosen = Number(menu.value); mark(operations); });
  const field = make("input", { type: "search", placeholder: "Search all four (Enter: next)", "aria-label": "search" });
  field.value = sought;
  field.addEventListener("input", () => { sought = field.value.toLowerCase(); search(false); if (!sought) mark(operations); });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.ctrlKey) { event.preventDefault(); search(true); }
  });
  const bar = make("div", { class: "listing-bar" }, make("span", {}, "Memory operation"), menu, field);
  const grid = make("div", { class: "listing-panes" });
  for (const { name, lines } of texts) {
    const copy = make("button", { type: "button" }, "Copy");
    copy.addEventListener("click", () => window.tilescopeFiles.copyText(copy, lines.join("\n")));
    const text = make("pre", { tabindex: "0", "aria-label": name });
    text.append(...lines.map((line) => make("div", {}, line || " ")));
    const head = make("div", { class: "pane-head" }, make("b", {}, name), make("span", { class: "count" }), copy);
    grid.append(make("section", { class: "pane", "data-name": name }, head, text));
  }
  root.replaceChildren(bar, grid);
  mark(operations);
  if (sought) search(false);
}

watch("value", draw);
draw();
