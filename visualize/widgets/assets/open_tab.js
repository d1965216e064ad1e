// The name of the open tab is one of the page's settings (see settings.py).
const tell = () => document.dispatchEvent(new CustomEvent("tilescope:told", { detail: { values: { tab: props.value } } }));
watch("value", tell);
