// Texts beside each other (see compiler.py). Its value is {panes: [{name, lines}], operations: [{label, marks}], operation},
// or "none" if the kernel cannot be compiled.
import { copyText } from "../../web/assets/files.js";
import { counted } from "../../web/assets/numbers.js";

const PANE = `<section class="pane"><div class="pane-head"><b></b><span class="count"></span><button type="button">Copy</button></div>
  <pre tabindex="0"></pre></section>`;

export default function mountListing(element) {
  const root = element.querySelector(".listing");
  let listing = null;
  let chosen = 0; // the operation in the menu
  let addressed = 0; // the operation in the page's address
  let search = "";
  const positions = {}; // by pane: the hit in view

  const panes = () => [...root.querySelectorAll(".pane")];

  // Highlight lines of a pane, write a note in its head, and scroll to one of the lines.
  function highlight(pane, style, lines, note, position = 0) {
    const text = pane.querySelector("pre"), node = text.children[lines[position]], highlighted = new Set(lines);
    [...text.children].forEach((each, line) => each.classList.toggle(style, highlighted.has(line)));
    pane.querySelector(".count").textContent = note;
    if (node) text.scrollTop = node.offsetTop - text.clientHeight / 3;
  }

  // Mark the lines of the chosen operation in every pane.
  function mark() {
    for (const pane of panes()) {
      const lines = listing.operations[chosen]?.marks[pane.dataset.name] ?? [];
      highlight(pane, "marked", lines, `${counted(lines.length, "line")} marked`);
    }
  }

  // Highlight the lines with the search text in every pane; Enter scrolls to the next one in each.
  function find(isNext) {
    panes().forEach((pane, place) => {
      const { name, lines } = listing.panes[place];
      const hits = search ? [...lines.keys()].filter((line) => lines[line].toLowerCase().includes(search)) : [];
      positions[name] = isNext && hits.length ? (positions[name] + 1) % hits.length : 0;
      highlight(pane, "found", hits, `${hits.length} found`, positions[name]);
    });
    if (!search) mark();
  }

  function draw(value) {
    root.classList.toggle("none", value === "none");
    root.replaceChildren();
    if (!value || value === "none") return;
    listing = JSON.parse(value);
    if (listing.operation !== addressed) chosen = listing.operation;
    addressed = listing.operation;
    chosen = Math.min(chosen, listing.operations.length - 1);
    root.innerHTML = `<div class="listing-bar"><span>Memory operation</span><select aria-label="memory operation"></select>
      <input type="search" placeholder="Search all four, Enter for next" aria-label="search"></div>
      <div class="listing-panes">${PANE.repeat(listing.panes.length)}</div>`;
    const menu = root.querySelector("select"), field = root.querySelector("input");
    menu.append(...listing.operations.map(({ label }, place) => new Option(label, place, false, place === chosen)));
    menu.addEventListener("change", () => { chosen = Number(menu.value); mark(); });
    field.value = search;
    field.addEventListener("input", () => { search = field.value.toLowerCase(); find(false); });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.ctrlKey) { event.preventDefault(); find(true); }
    });
    panes().forEach((pane, place) => {
      const { name, lines } = listing.panes[place], text = pane.querySelector("pre"), copy = pane.querySelector("button");
      pane.dataset.name = pane.querySelector("b").textContent = name;
      text.setAttribute("aria-label", name);
      text.append(...lines.map((line) => Object.assign(document.createElement("div"), { textContent: line || " " })));
      copy.addEventListener("click", () => copyText(lines.join("\n")));
    });
    mark();
    if (search) find(false);
  }

  return draw;
}
