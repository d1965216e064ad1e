// The dialog with the link and its QR code (see page.py). address.js keeps the link on the body.
import { onClick } from "./dom.js";
import { copyText } from "./files.js";
import { send } from "./messages.js";

export default function mountShare(element) {
  const dialog = element.querySelector("dialog");
  const [field, frame] = element.querySelectorAll("input");
  const code = element.querySelector(".qr");

  dialog.addEventListener("toggle", ({ newState }) => {
    if (newState === "closed") return;
    field.value = document.body.dataset.link;
    frame.value = `<iframe src="${field.value}&embed=1" width="960" height="600"></iframe>`;
    code.replaceChildren();
    send.act("share", { link: field.value });
  });
  onClick("#share .copy", (button) => copyText(button.previousSibling.value));
  return (value) => {
    const { link, svg } = JSON.parse(value || "{}");
    if (link !== field.value) return;
    code.innerHTML = svg;
    code.dataset.link = link;
  };
}
