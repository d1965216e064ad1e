// Tables: a button saves any table as it stands.
import { onClick } from "./dom.js";
import { fileName, saveFile } from "./files.js";

// Other programs read numbers without separators of thousands. A byte order mark makes spreadsheets read UTF-8.
onClick(".save-csv", (button) => {
  const table = button.nextSibling, text = (cell) => cell.textContent.replace(/(?<=\d),(?=\d{3})/g, "");
  const line = (row) => Array.from(row.cells, (cell) => `"${text(cell).replaceAll('"', '""')}"`).join();
  saveFile(`${fileName(table.caption?.textContent ?? table.closest(".slot").id)}.csv`, `\ufeff${Array.from(table.rows, line).join("\r\n")}`);
});
