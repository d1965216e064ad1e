// Tables in a `.sortable` (see views/tune/text.py): a heading sorts by its column, a box above keeps the rows that hold what
// is typed. Both stay as they are while the table is drawn anew.
let sought = "", column = -1, falls = false;

function number(text) {
  const units = { bytes: 1, kB: 1e3, MB: 1e6, GB: 1e9 };
  const [value, unit] = text.trim().replaceAll(",", "").split(/\s+/);
  return value === "" || Number.isNaN(Number(value)) ? null : Number(value) * (units[unit] ?? 1);
}

function compared(a, b) {
  const [x, y] = [number(a), number(b)];
  return x !== null && y !== null ? x - y : (x === null) - (y === null) || a.localeCompare(b);
}

function arrange(box) {
  const body = box.querySelector("tbody"), headings = [...box.querySelectorAll("th")];
  headings.forEach((heading, i) => {
    if (i === column) heading.setAttribute("aria-sort", falls ? "descending" : "ascending");
    else heading.removeAttribute("aria-sort");
  });
  const rows = [...body.rows];
  if (column >= 0) {
    const of = (row) => row.cells[column]?.textContent ?? "";
    rows.sort((a, b) => (falls ? -1 : 1) * compared(of(a), of(b)));
    body.append(...rows);
  }
  const words = sought.toLowerCase().split(/\s+/).filter(Boolean);
  const headed = headings.map((heading) => heading.textContent.trim());
  for (const row of rows) {
    const text = [...row.cells].map((cell, i) => `${headed[i]}=${cell.textContent.trim()}`.toLowerCase());
    row.hidden = !words.every((word) => text.some((cell) => (word.includes("=") ? cell === word : cell.includes(word))));
  }
}

function made(box) {
  const label = document.createElement("label"), input = document.createElement("input");
  Object.assign(input, { type: "search", value: sought, placeholder: "such as num_warps=8", className: "sought" });
  label.append("Filter rows ", input);
  input.addEventListener("input", () => { sought = input.value; arrange(box); });
  box.prepend(label);
  box.querySelectorAll("th").forEach((heading, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      falls = column === i && !falls;
      column = i;
      arrange(box);
    });
  });
  arrange(box);
}

// A box that is being typed into stays: what is drawn anew takes what was typed, and the focus.
function drawn() {
  const typing = document.activeElement?.matches(".sought");
  element.querySelectorAll(".sortable").forEach(made);
  if (typing) element.querySelector(".sought")?.focus();
}

watch("value", drawn);
drawn();
