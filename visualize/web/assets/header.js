// The views and their pictures. Its value is the name of the open picture, which the address calls `tab`.
import { onClick } from "./dom.js";
import { send, settings } from "./messages.js";

export default function mountHeader() {
  // View → its picture that was open last.
  const latest = new Map();

  const pictures = (view) => view.dataset.tabs.split(" ");

  function open(name) {
    for (const view of document.querySelectorAll("#header [data-tabs]")) {
      const isOpen = pictures(view).includes(name);
      view.ariaCurrent = isOpen ? "page" : null;
      if (isOpen) latest.set(view, name);
    }
    for (const section of document.querySelectorAll(".tabitem")) section.hidden = section.id !== `${name}-tab`;
    for (const button of document.querySelectorAll(".pictures [data-tab]")) button.ariaCurrent = button.dataset.tab === name ? "true" : null;
    settings.tab = name;
  }

  function choose(name) {
    if (settings.tab === name) return;
    open(name);
    send.redraw();
  }

  onClick("#header [data-tabs]", (view) => choose(latest.get(view) ?? pictures(view)[0]));
  onClick(".pictures [data-tab]", ({ dataset: { tab } }) => {
    choose(tab);
    document.querySelector(`#${tab}-tab [data-tab=${tab}]`)?.focus();
  });
  // On a narrow screen, the controls are a drawer (see base.css). The picture stays in view above it.
  document.querySelector("#controls")?.addEventListener("toggle", ({ newState }) => {
    if (newState === "open") document.querySelector(".tabitem:not([hidden]) .picture")?.scrollIntoView();
  });
  return open;
}
