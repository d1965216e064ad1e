// What all controls are set to (see settings.py): `props.value` is it as JSON. Forms tell what they show, and when
// something was set there.
function told(values, event) {
  const { preset, ...before } = JSON.parse(props.value); // a preset is clicked once
  props.value = JSON.stringify({ ...before, ...values });
  if (event) trigger(event);
}

document.addEventListener("tilescope:told", ({ detail }) => told(detail.values, detail.event));

// Something that is no form has set a field: it counts from now on, and is redrawn if need be.
const setElsewhere = new Set();
document.addEventListener("tilescope:set", ({ detail }) => {
  setElsewhere.add(detail.name);
  if (JSON.parse(props.value)[detail.name] !== detail.value) told({ [detail.name]: detail.value }, detail.redraw ? "input" : "");
});

// An answer that was asked for before that has the older value in its address.
document.addEventListener("tilescope:address", () => {
  const now = JSON.parse(props.value), address = new URLSearchParams(document.body.dataset.address);
  for (const name of setElsewhere) {
    if (!(name in now) || !address.has(name) || address.get(name) === String(now[name])) continue;
    document.dispatchEvent(new CustomEvent("tilescope:set", { detail: { name, value: now[name] } }));
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  trigger("submit");
});
