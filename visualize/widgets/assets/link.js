// The page's address (see link.py). `props.value` is the query of the page as it stands.
const copy = element.querySelector(".copy-link");

function address() {
  const kept = new URLSearchParams(props.value);
  const theme = new URLSearchParams(location.search).get("__theme");
  if (theme) kept.set("__theme", theme);
  return kept;
}

// What a result belongs to, and what the controls say now: where they differ, the result is greyed.
function markStale() {
  const now = new URLSearchParams(props.value);
  document.querySelectorAll("[data-experiment]").forEach((node) => {
    const then = new URLSearchParams(node.dataset.experiment);
    const refused = document.querySelector("#experiment .field.wrong") !== null;
    const moved = [...then].some(([name, value]) => now.get(name) !== value);
    const stale = refused || moved || (now.get("gpu") ?? "") !== (then.get("gpu") ?? "");
    node.classList.toggle("stale", stale);
    if (node.closest("#result")) {
      for (const plot of document.querySelectorAll("#diff-plot, #closeup-plot")) plot.classList.toggle("stale", stale);
    }
  });
}

function write() {
  if (!props.value) return;
  history.replaceState(history.state, "", `${location.pathname}?${address()}`);
  document.body.dataset.address = props.value;
  markStale();
}

copy.addEventListener("click", async () => {
  const base = given.base || `${location.origin}${location.pathname}`;
  await navigator.clipboard.writeText(`${base}?${new URLSearchParams(props.value)}`);
  copy.textContent = "Copied";
  setTimeout(() => { copy.textContent = "Copy link"; }, 1500);
});
element.querySelector(".theme-switch").addEventListener("click", () => {
  const dark = document.body.classList.toggle("dark");
  const kept = new URLSearchParams(location.search);
  kept.set("__theme", dark ? "dark" : "light");
  history.replaceState(history.state, "", `${location.pathname}?${kept}`);
});
document.addEventListener("tilescope:set", ({ detail }) => {
  const query = new URLSearchParams(props.value);
  query.set(detail.name, detail.value);
  props.value = query.toString();
  write();
});
document.addEventListener("tilescope:result", markStale);
document.addEventListener("tilescope:problems", markStale);
watch("value", write);
write();
