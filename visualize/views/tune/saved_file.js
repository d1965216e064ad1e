// A file that the server wrote when a button was pressed (see Table.csv_file). `props.value` is {name, type, text} as JSON.
watch("value", () => {
  if (!props.value) return;
  const { name, type, text } = JSON.parse(props.value);
  window.tilescopeFiles.saveFile(name, type, text);
});
