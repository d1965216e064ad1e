// Texts beside each other (see compiler.py). `props.value` is {panes: [{name, lines}], operations: [{label, marks}],
// operation}, or "none" where there will be none.
const root = element.querySelector(".listing");
let listing = null;
let chosen = 0; // the operation in the menu
let addressed = 0; // the operation in the page's address
let search = "";
const positions = {}; // by pane: which of its hits is in view

const panes = () => [...root.querySelectorAll(".pane")];
const ofPane = (pane) => [pane.querySelector("pre"), pane.querySelector(".count")];

function reveal(text, line) {
  const node = text.children[line];
  if (node) text.scrollTop = node.offsetTop - text.clientHeight / 3;
}

// Mark the lines of the chosen operation in every pane, and scroll to the first of them.
function mark() {
  for (const pane of panes()) {
    const [text, count] = ofPane(pane), lines = listing.operations[chosen]?.marks[pane.dataset.name] ?? [];
    [...text.children].forEach((node, line) => node.classList.toggle("marked", lines.includes(line)));
    count.textContent = `${lines.length} line${lines.length === 1 ? "" : "s"} marked`;
    if (lines.length) reveal(text, lines[0]);
  }
}

// Highlight the lines with the search text in every pane; Enter scrolls to the next one in each.
function find(isNext) {
  for (const pane of panes()) {
    const [text, count] = ofPane(pane), { name } = pane.dataset, hits = [];
    [...text.children].forEach((node, line) => {
      const isHit = search !== "" && node.textContent.toLowerCase().includes(search);
      node.classList.toggle("found", isHit);
      if (isHit) hits.push(line);
    });
    positions[name] = isNext && hits.length ? ((positions[name] ?? -1) + 1) % hits.length : 0;
    if (hits.length) reveal(text, hits[positions[name]]);
    if (search) count.textContent = `${hits.length} found`;
  }
}

const PANE = `<section class="pane"><div class="pane-head"><b></b><span class="count"></span><button type="button">Copy</button></div>
  <pre tabindex="0"></pre></section>`;

function draw() {
  root.classList.toggle("none", props.value === "none");
  root.replaceChildren();
  if (!props.value || props.value === "none") return;
  listing = JSON.parse(props.value);
  if (listing.operation !== addressed) chosen = listing.operation;
  addressed = listing.operation;
  chosen = Math.min(chosen, listing.operations.length - 1);
  root.innerHTML = `<div class="listing-bar"><span>Memory operation</span><select aria-label="memory operation"></select>
    <input type="search" placeholder="Search all four (Enter: next)" aria-label="search"></div>
    <div class="listing-panes">${PANE.repeat(listing.panes.length)}</div>`;
  const menu = root.querySelector("select"), field = root.querySelector("input");
  menu.append(...listing.operations.map(({ label }, place) => new Option(label, place, false, place === chosen)));
  menu.addEventListener("change", () => { chosen = Number(menu.value); mark(); });
  field.value = search;
  field.addEventListener("input", () => { search = field.value.toLowerCase(); find(false); if (!search) mark(); });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.ctrlKey) { event.preventDefault(); find(true); }
  });
  panes().forEach((pane, place) => {
    const { name, lines } = listing.panes[place], [text] = ofPane(pane), copy = pane.querySelector("button");
    pane.dataset.name = pane.querySelector("b").textContent = name;
    text.setAttribute("aria-label", name);
    text.append(...lines.map((line) => Object.assign(document.createElement("div"), { textContent: line || " " })));
    copy.addEventListener("click", () => window.tilescopeFiles.copyText(copy, lines.join("\n")));
  });
  mark();
  if (search) find(false);
}

watch("value", draw);
draw();
