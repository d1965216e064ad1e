// Texts side by side, in which the lines of one operation are marked (see `list_texts` in compiler.py).
import { copyText } from "../../web/assets/files.js";
import { counted } from "../../web/assets/numbers.js";

export default function mountListing(element) {
  const root = element.querySelector(".listing");
  // operation → text → line numbers
  let marks = [];
  // The operation in the page's address.
  let addressed = 0;
  // The index of the search hit in view.
  let position = 0;

  const find = (selector) => root.querySelector(selector);

  // Highlight lines of each text, write a note in its head, and scroll to one of the lines.
  function highlight(style, isChosen, note, at) {
    for (const pane of root.querySelectorAll(".pane")) {
      const text = pane.querySelector("pre"), lines = [...text.children].filter((line, number) => {
        return line.classList.toggle(style, isChosen(line, number, pane.dataset.name));
      });
      pane.querySelector(".count").textContent = note(lines.length);
      if (lines.length) text.scrollTop = lines[at % lines.length].offsetTop - text.clientHeight / 3;
    }
  }

  function mark() {
    const chosen = marks[find("select").selectedIndex];
    highlight("marked", (line, number, name) => chosen?.[name].includes(number) ?? false, (count) => `${counted(count, "line")} marked`, 0);
  }

  // Highlight the lines with the search text; Enter scrolls to the next one in each text.
  function search(at) {
    const words = find("input").value.toLowerCase();
    position = at;
    highlight("found", (line) => words !== "" && line.textContent.toLowerCase().includes(words), (count) => `${count} found`, at);
    if (!words) mark();
  }

  root.addEventListener("input", ({ target }) => (target.matches("select") ? mark() : search(0)));
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.ctrlKey || event.target !== find("input")) return;
    event.preventDefault();
    search(position + 1);
  });
  root.addEventListener("click", ({ target }) => {
    if (target.matches("button")) copyText(Array.from(target.closest(".pane").querySelectorAll("pre > *"), (line) => line.textContent).join("\n"));
  });
  return (value) => {
    const chosen = find("select")?.selectedIndex, words = find("input")?.value ?? "", isNone = value === "none";
    root.classList.toggle("none", isNone);
    root.replaceChildren();
    if (!value || isNone) return;
    const listing = JSON.parse(value), { operation } = listing;
    root.innerHTML = listing.html;
    marks = listing.marks;
    find("input").value = words;
    // The reader's choice remains while the address names the same operation.
    find("select").selectedIndex = Math.min(operation === addressed ? chosen ?? operation : operation, marks.length - 1);
    addressed = operation;
    mark();
    if (words) search(0);
  };
}
