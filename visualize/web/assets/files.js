// Files that the page saves, pictures of figures, and text for the clipboard.
import { emit, make, notify } from "./dom.js";
import { Gif } from "./gif.js";
import { counted } from "./numbers.js";

export function saveFile(name, content) {
  const link = make("a", { href: URL.createObjectURL(new Blob([content])), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// A file's name from any text.
export function fileName(text) {
  return text.replace(/<[^>]*>/g, " ").replace(/[^A-Za-z0-9.]+/g, "_").replace(/^_+|_+$/g, "").slice(0, 80) || "tilescope";
}

// The page's typeface, for SVG that is shown outside the page.
let fonts = null;

async function readFontFaces() {
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]);
  const faces = rules.filter((rule) => rule instanceof CSSFontFaceRule && rule.style.fontFamily.includes("Plex Sans"));
  const embed = async (rule) => {
    const [whole, path] = rule.cssText.match(/url\("(.*?)"\)/), file = await fetch(new URL(path, rule.parentStyleSheet.href));
    return rule.cssText.replace(whole, `url("data:font/woff2;base64,${(await file.bytes()).toBase64()}")`);
  };
  return (await Promise.all(faces.map(embed))).join("");
}

const tag = (name, attributes, content = "") => `<${name} ${Object.entries(attributes).map(([key, value]) => `${key}="${value}"`).join(" ")}>${content}</${name}>`;
const escaped = (text) => make("p", {}, text).innerHTML;
const svgText = (text, x, y, style) =>
  tag("text", { x, y, "font-size": style.fontSize, "font-weight": style.fontWeight, fill: style.color }, escaped(text));

// The lines of a text node, as SVG. A line's baseline is below four fifths of its height.
function traceText(node, left, top) {
  const range = document.createRange();
  const words = Array.from(node.data.matchAll(/\S+/g), ({ 0: word, index }) => {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const box = range.getBoundingClientRect();
    return { word, x: box.left - left, y: box.top - top + 0.79 * box.height };
  });
  const lines = Map.groupBy(words, (place) => place.y).values(), style = getComputedStyle(node.parentNode);
  return Array.from(lines, (line) => svgText(line.map((place) => place.word).join(" "), line[0].x, line[0].y, style)).join("");
}

// An element of the page as SVG, which other programs open: backgrounds, lines of text and drawings.
function traceElement(root, left, top) {
  const frame = root.getBoundingClientRect();
  return [root, ...root.querySelectorAll("*")].map((node) => {
    const box = node.getBoundingClientRect(), { backgroundColor: fill, borderTopLeftRadius: radius } = getComputedStyle(node);
    if (!node.checkVisibility() || box.left >= frame.right || box.top >= frame.bottom) return ""; // clipped
    const place = { x: box.left - left, y: box.top - top, width: box.width, height: box.height };
    if (node.matches("canvas")) return tag("image", { ...place, href: node.toDataURL() });
    const texts = [...node.childNodes].filter((child) => child instanceof Text);
    return tag("rect", { ...place, fill, rx: parseFloat(radius) }) + texts.map((text) => traceText(text, left, top)).join("");
  }).join("");
}

// What other scripts lay over a figure: HTML and its steps.
function layers(node) {
  const detail = { over: [] };
  emit("save", detail, node);
  return detail;
}

// A figure as it looks, as SVG: below its headline, with the HTML over it, its legend, and its description.
async function tracePicture(node, about) {
  const { width, height: drawn, font } = node._fullLayout, { left, top } = node.getBoundingClientRect(), texts = [];
  const { dataset } = node.closest(".slot").querySelector(".live-plot"), whose = node.matches(".pinned-plot") ? "is" : "not";
  const legend = document.getElementById(dataset.legend)?.querySelector(".legend"), place = legend?.getBoundingClientRect();
  const heading = document.querySelectorAll(`#${dataset.headline} :is(.number, .lead):${whose}(.pinned *)`);
  let height = 0;
  // Adds lines that fit.
  const write = (text, ends, fontSize, fontWeight) => {
    const most = Math.max(40, Math.floor((width - 20) / (0.6 * fontSize)));
    for (const [words] of text.matchAll(new RegExp(`\\S.{0,${most}}(?:${ends}|$)`, "g"))) {
      texts.push(svgText(words, 10, height += 1.45 * fontSize, { fontSize, fontWeight, color: font.color }));
    }
  };
  const words = Array.from(heading, (part) => {
    const copy = part.cloneNode(true);
    for (const mark of copy.querySelectorAll(".mark")) mark.replaceWith(`(${mark.textContent})`);
    return copy.textContent;
  });
  write(words.join(". "), " ", font.size, 700);
  const start = height += 8;
  height += drawn + (place?.height ?? 0) + 4;
  write(about, ",| ·", 0.78 * font.size, 400);
  height = Math.ceil(height + 8);
  const plot = await window.Plotly.toImage(node, { format: "svg", width, height: drawn });
  const svg = tag("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}`, "font-family": escaped(font.family) }, [
    tag("style", {}, await (fonts ??= readFontFaces())),
    tag("rect", { width, height, fill: getComputedStyle(node).getPropertyValue("--paper") }),
    ...texts,
    `<g transform="translate(0 ${start})">`,
    decodeURIComponent(plot.replace(/^.*?,/, "")),
    ...layers(node).over.map((each) => traceElement(each, left, top)),
    legend ? traceElement(legend, place.left - 10, place.top - drawn - 4) : "",
    "</g>",
  ].join(""));
  return { svg, width, height };
}

async function rasterize({ svg, width, height }, scale) {
  const image = new Image(), canvas = make("canvas", { width: Math.round(scale * width), height: Math.round(scale * height) });
  image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
  await image.decode();
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas;
}

// Saves a figure as SVG or PNG, or its steps as GIF.
export async function savePicture(node, about, format) {
  const name = `${fileName(`${about.split(" · ")[0]} ${node.layout.title?.text ?? ""}`)}.${format}`;
  if (format === "gif") return saveFile(name, await animate(node, about));
  const picture = await tracePicture(node, about);
  if (format === "svg") return saveFile(name, picture.svg);
  return (await rasterize(picture, 2)).toBlob((blob) => saveFile(name, blob));
}

// The steps of a figure, or as many of them as fit into some seconds. The page shows them while they are drawn.
async function animate(node, about) {
  const { step, count, show } = layers(node).steps, frames = Math.min(count, 48), gif = new Gif();
  notify(`Drawing ${counted(frames, "frame")} of a GIF.`);
  for (let i = 1; i <= frames; i++) {
    await show(Math.round(i * count / frames));
    const picture = await tracePicture(node, about);
    gif.add(await rasterize(picture, Math.min(1, 960 / picture.width)), i < frames ? Math.min(500, 8000 / frames) : 2000);
  }
  await show(step);
  return gif.encode();
}

// Copies a text. Browsers refuse it without HTTPS, and in a frame of another site.
export async function copyText(text) {
  const copied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  notify(copied ? "Copied" : "The browser refused access to the clipboard.");
}
