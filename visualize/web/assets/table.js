// Tables: a click on a list's heading sorts its rows, and a button saves any table as it stands.
import { onClick } from "./dom.js";
import { fileName, saveFile } from "./files.js";

// Text is sorted by the numbers in it, and rows without a value come last.
onClick(".recordings th button", ({ parentNode: heading }) => {
  const body = heading.closest("table").tBodies[0], sign = heading.ariaSort === "ascending" ? -1 : 1;
  const value = (row) => row.cells[heading.cellIndex].dataset.value;
  const compare = (a, b) => (a === "") - (b === "") || sign * (a - b || a.localeCompare(b, "en", { numeric: true }));
  body.append(...[...body.rows].toSorted((a, b) => compare(value(a), value(b))));
  for (const each of heading.parentNode.cells) each.ariaSort = null;
  heading.ariaSort = sign > 0 ? "ascending" : "descending";
});

// Other programs read numbers without separators of thousands. A byte order mark makes spreadsheets read UTF-8.
onClick(".save-csv", (button) => {
  const table = button.nextSibling, text = (cell) => cell.dataset.value ?? cell.textContent.replace(/(?<=\d),(?=\d{3})/g, "");
  const line = (row) => Array.from(row.cells, (cell) => `"${text(cell).replaceAll('"', '""')}"`).join();
  saveFile(`${fileName(table.caption?.textContent ?? table.closest(".slot").id)}.csv`, `\ufeff${Array.from(table.rows, line).join("\r\n")}`);
});
