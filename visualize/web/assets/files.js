// Files that the page saves: tables as CSV, pictures of figures, and text for the clipboard. Loaded with address.js.

function saveFile(name, type, content) {
  const link = make("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A file's name from any text.
function fileName(text) {
  return text.replace(/<[^>]*>/g, " ").replace(/[^A-Za-z0-9.]+/g, "_").replace(/^_+|_+$/g, "").slice(0, 80) || "tilescope";
}

// Breaks a text after commas and dots into lines of at most so many characters.
function wrap(text, most) {
  const lines = [""];
  for (const part of text.split(/(?<=, | · )/)) {
    if (lines.at(-1) && (lines.at(-1) + part).trimEnd().length > most) lines.push("");
    lines[lines.length - 1] += part;
  }
  return lines.map((line) => line.trimEnd());
}

// Saves a figure as it is drawn, with its description below.
function savePicture(node, about, format) {
  const { width, height, _size: size, font } = node._fullLayout, letters = 0.78 * font.size;
  const lines = wrap(about, Math.max(40, Math.floor((width - 20) / (0.6 * letters))));
  const below = 1.45 * letters * lines.length + 10;
  const note = {
    text: lines.join("<br>"), showarrow: false, font: { size: letters }, align: "left",
    xref: "paper", x: 0, xanchor: "left", xshift: 10 - size.l,
    yref: "paper", y: 0, yanchor: "bottom", yshift: 6 - size.b - below,
  };
  const layout = {
    ...node.layout, width, height: height + below, autosize: false,
    paper_bgcolor: getComputedStyle(document.body).backgroundColor,
    margin: { l: size.l, r: size.r, t: size.t, b: size.b + below },
    annotations: [...(node.layout.annotations ?? []), note],
  };
  const filename = fileName(`${about.split(" · ")[0]} ${node.layout.title?.text ?? ""}`);
  window.Plotly.downloadImage({ data: node.data, layout }, { format, filename, width, height: layout.height, scale: 2 });
}

// Copies a text, and says so on the button.
async function copyText(button, text) {
  const label = (button.dataset.label ??= button.textContent);
  await navigator.clipboard.writeText(text);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1500);
}

// Numbers without separators of thousands, as other programs read them.
function cellText({ textContent }) {
  const text = textContent.replace(/\s+/g, " ").trim();
  return /^-?\d{1,3}(,\d{3})+(\.\d+)?$/.test(text) ? text.replaceAll(",", "") : text;
}

// A table's texts by row. A cell that spans rows is repeated in each; one that spans columns stands in the first.
function cellsOf(table) {
  const rows = Array.from(table.rows, () => []);
  rows.forEach((row, r) => {
    let c = 0;
    for (const cell of table.rows[r].cells) {
      while (row[c] !== undefined) c++;
      for (const spanned of rows.slice(r, r + cell.rowSpan)) {
        for (let right = 0; right < cell.colSpan; right++) spanned[c + right] = right ? "" : cellText(cell);
      }
    }
  });
  return rows;
}

// RFC 4180.
function csv(rows) {
  const field = (text = "") => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return rows.map((row) => `${Array.from(row, field).join(",")}\r\n`).join("");
}

onClick(".save-csv", ({ parentElement }) => {
  const table = parentElement.querySelector("table");
  const kernel = new URLSearchParams(document.body.dataset.address).get("kernel") ?? "";
  const name = fileName(`${kernel} ${table.caption?.textContent ?? table.rows[0]?.textContent ?? "table"}`);
  // With a mark in front, a spreadsheet reads it as UTF-8.
  saveFile(`${name}.csv`, "text/csv;charset=utf-8", `\uFEFF${csv(cellsOf(table))}`);
});
window.tilescopeFiles = { copyText, fileName, saveFile, savePicture };
