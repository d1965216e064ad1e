// Hands updates to the page (see page.js).
watch("value", () => window.tilescopeReceive(props.value));
