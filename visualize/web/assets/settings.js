// What all controls are set to. Forms report what they show, and when something was set there.
function told(values, isSet) {
  Object.assign(send.settings, values);
  if (isSet) send.redraw();
}

document.addEventListener("tilescope:told", ({ detail }) => told(detail.values, detail.isSet));

// Something that is no form has set a field: it counts from now on, and is redrawn if need be.
const setElsewhere = new Set();
document.addEventListener("tilescope:set", ({ detail }) => {
  setElsewhere.add(detail.name);
  if (send.settings[detail.name] !== detail.value) told({ [detail.name]: detail.value }, detail.redraw);
});

// A reply to an earlier request has the older value in its address.
document.addEventListener("tilescope:address", () => {
  const address = new URLSearchParams(document.body.dataset.address);
  for (const name of setElsewhere) {
    const value = send.settings[name];
    if (value === undefined || !address.has(name) || address.get(name) === String(value)) continue;
    document.dispatchEvent(new CustomEvent("tilescope:set", { detail: { name, value } }));
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  if (!document.getElementById("run").disabled) send.act("run");
});
watch("value", () => {
  for (const name of Object.keys(send.settings)) if (name !== "tab") delete send.settings[name];
  Object.assign(send.settings, JSON.parse(props.value));
});
