// The views and their pictures. `props.value` is the name of the open picture, which the address calls `tab`.
const header = element.closest("#header");
const views = [...header.querySelectorAll("[data-tabs]")];
const latest = new Map(); // view → the picture that was open last

const pictures = (view) => view.dataset.tabs.split(" ");

function open(name) {
  for (const view of views) {
    const isOpen = pictures(view).includes(name);
    if (isOpen) latest.set(view, name);
    if (view.role === "tab") {
      view.setAttribute("aria-selected", isOpen);
      view.tabIndex = isOpen || (!element.querySelector("[aria-selected=true]") && view === views[0]) ? 0 : -1;
    } else view.setAttribute("aria-pressed", isOpen);
  }
  for (const section of document.querySelectorAll(".tabitem")) section.hidden = section.id !== `${name}-tab`;
  for (const button of document.querySelectorAll(".pictures [data-tab]")) {
    if (button.dataset.tab === name) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
  send.settings.tab = name;
}

function choose(name) {
  if (send.settings.tab === name) return;
  open(name);
  send.redraw();
}

header.addEventListener("click", ({ target }) => {
  const view = target.closest("[data-tabs]");
  if (view) choose(latest.get(view) ?? pictures(view)[0]);
});
document.addEventListener("click", ({ target }) => {
  const picture = target.closest?.(".pictures [data-tab]");
  if (!picture) return;
  choose(picture.dataset.tab);
  document.querySelector(`#${picture.dataset.tab}-tab [data-tab=${picture.dataset.tab}]`)?.focus();
});
element.addEventListener("keydown", ({ key, target }) => {
  const tabs = views.filter(({ role }) => role === "tab");
  const by = { ArrowLeft: -1, ArrowRight: 1 }[key], at = tabs.indexOf(target);
  if (!by || at < 0) return;
  const view = tabs[(at + by + tabs.length) % tabs.length];
  view.focus();
  view.click();
});
watch("value", () => open(props.value));
