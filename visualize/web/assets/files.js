// Files that the page saves, pictures of figures, and text for the clipboard.

function saveFile(name, type, content) {
  const link = make("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A file's name from any text.
function fileName(text) {
  return text.replace(/<[^>]*>/g, " ").replace(/[^A-Za-z0-9.]+/g, "_").replace(/^_+|_+$/g, "").slice(0, 80) || "tilescope";
}

// Saves a figure as it is drawn, with its description below.
function savePicture(node, about, format) {
  const { width, height, _size: size, font } = node._fullLayout, letters = 0.78 * font.size;
  // Lines that fit, broken after commas and dots.
  const most = Math.max(40, Math.floor((width - 20) / (0.6 * letters)));
  const lines = about.match(new RegExp(`\\S.{0,${most}}(?:,| ·|$)`, "g"));
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

// Copies a text. In a frame of another site, and without HTTPS, browsers refuse the clipboard to all but the old command.
async function copyText(text) {
  const copy = (event) => {
    event.preventDefault();
    event.clipboardData.setData("text/plain", text);
  };
  try {
    await navigator.clipboard.writeText(text);
    notify("Copied");
  } catch {
    document.addEventListener("copy", copy, { once: true });
    notify(document.execCommand("copy") ? "Copied" : "The browser refused access to the clipboard.");
  }
}
