// The views' tabs. `props.value` is the name of the open view.
const tabs = [...element.querySelectorAll("[role=tab]")];

function open(name) {
  for (const tab of tabs) {
    const isOpen = tab.dataset.tab === name;
    tab.setAttribute("aria-selected", isOpen);
    tab.tabIndex = isOpen ? 0 : -1;
    document.getElementById(`${tab.dataset.tab}-tab`).hidden = !isOpen;
  }
  send.settings.tab = name;
}

function choose(tab) {
  if (tab.getAttribute("aria-selected") === "true") return;
  open(tab.dataset.tab);
  tab.scrollIntoView({ block: "nearest", inline: "nearest" });
  send.redraw();
}

element.addEventListener("click", ({ target }) => {
  const tab = target.closest("[role=tab]");
  if (tab) choose(tab);
});
element.addEventListener("keydown", ({ key, target }) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[key], at = tabs.indexOf(target);
  if (!by || at < 0) return;
  const tab = tabs[(at + by + tabs.length) % tabs.length];
  tab.focus();
  choose(tab);
});
watch("value", () => open(props.value));
