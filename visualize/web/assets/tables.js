// Any table of the page as CSV (RFC 4180): what it says, cell by cell (see tables.py).

// Rows of texts. A cell that spans several rows stands in each, one that spans several columns in the first.
function cellsOf(table) {
  const rows = [];
  [...table.rows].forEach((row, r) => {
    rows[r] ??= [];
    let c = 0;
    for (const cell of row.cells) {
      while (rows[r][c] !== undefined) c++;
      const text = plain(cell.textContent.replace(/\s+/g, " ").trim());
      for (let down = 0; down < cell.rowSpan; down++) {
        rows[r + down] ??= [];
        for (let right = 0; right < cell.colSpan; right++) rows[r + down][c + right] = right ? "" : text;
      }
      c += cell.colSpan;
    }
  });
  return rows;
}

// A number as other programs read it: without a separator of thousands.
function plain(text) {
  return /^-?\d{1,3}(,\d{3})+(\.\d+)?$/.test(text) ? text.replaceAll(",", "") : text;
}

function csv(rows) {
  const field = (text = "") => /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  return rows.map((row) => `${Array.from(row, field).join(",")}\r\n`).join("");
}

document.addEventListener("click", ({ target }) => {
  const button = target.closest?.(".save-csv");
  const table = button?.parentElement.querySelector("table");
  if (!table) return;
  const kernel = new URLSearchParams(document.body.dataset.address ?? "").get("kernel") ?? "";
  const name = window.tilescopeFiles.fileName(`${kernel} ${table.caption?.textContent ?? table.rows[0]?.textContent ?? "table"}`);
  // With a mark in front, a spreadsheet reads it as UTF-8.
  window.tilescopeFiles.saveFile(`${name}.csv`, "text/csv;charset=utf-8", `\uFEFF${csv(cellsOf(table))}`);
});
