// The dialog with the link and its QR code (see share.py). Link.js keeps the link on the body.
const dialog = element.querySelector("dialog");
const field = element.querySelector("input");
const code = element.querySelector(".qr");
const copy = element.querySelector(".copy");

function open() {
  if (dialog.open) return;
  field.value = document.body.dataset.link;
  code.replaceChildren();
  code.dataset.link = "";
  dialog.showModal();
  send.act("share", { link: field.value });
}

function show() {
  if (!props.value) return;
  const { link, svg } = JSON.parse(props.value);
  if (!svg || link !== field.value) return;
  code.innerHTML = svg;
  code.dataset.link = link;
}

copy.addEventListener("click", () => window.tilescopeFiles.copyText(copy, field.value));
element.querySelector(".open-share").addEventListener("click", open);
document.addEventListener("tilescope:share", open);
dialog.addEventListener("keydown", (event) => { if (event.key.toLowerCase() === "q") dialog.close(); });
watch("value", show);
