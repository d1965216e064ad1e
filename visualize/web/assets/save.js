// What is taken away from the page: files, pictures of figures, and text for the clipboard. Loaded by link.py.

function saveFile(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A name for a file, of words that may hold anything.
function fileName(text) {
  return text.replace(/<[^>]*>/g, " ").replace(/[^A-Za-z0-9.]+/g, "_").replace(/^_+|_+$/g, "").slice(0, 80) || "tilescope";
}

// Lines of at most so many characters, broken after a comma or a dot.
function wrapped(text, most) {
  const lines = [""];
  for (const part of text.split(/(?<=, | · )/)) {
    if (lines.at(-1) && (lines.at(-1) + part).trimEnd().length > most) lines.push("");
    lines[lines.length - 1] += part;
  }
  return lines.map((line) => line.trimEnd());
}

// A figure as it stands, on paper, with what it is about below it.
function onPaper(node, about) {
  const { width, height, _size: size } = node._fullLayout;
  const letters = 0.78 * node._fullLayout.font.size;
  const lines = wrapped(about, Math.max(40, Math.floor((width - 20) / (0.6 * letters))));
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
  return { data: node.data, layout };
}

async function savePicture(node, about, format) {
  const figure = onPaper(node, about);
  const { width, height } = figure.layout;
  const address = await window.Plotly.toImage(figure, { format, width, height, scale: 2 });
  const image = await (await fetch(address)).blob();
  const title = node.layout.title?.text ?? "";
  saveFile(`${fileName(`${about.split(" · ")[0]} ${title}`)}.${format}`, image.type, image);
}

// Copies a text, and says so on the button that was pressed.
async function copyText(button, text) {
  const label = (button.dataset.label ??= button.textContent);
  await navigator.clipboard.writeText(text);
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1500);
}

window.tilescopeFiles = { copyText, fileName, saveFile, savePicture };
