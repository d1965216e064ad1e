// Puts each sentence next to the control that caused it (see form.py). What belongs to none is shown above the tabs.
function place() {
  const sentences = JSON.parse(props.value || "{}");
  const elsewhere = document.querySelector("#elsewhere .problem");
  const homeless = [];
  document.querySelectorAll(".field .problem").forEach((p) => { p.textContent = ""; });
  document.querySelectorAll(".field").forEach((f) => f.classList.remove("wrong"));
  for (const [name, sentence] of Object.entries(sentences)) {
    const field = name && document.querySelector(`.field[data-field="${CSS.escape(name)}"]`);
    if (field) {
      field.querySelector(".problem").textContent = sentence;
      field.classList.add("wrong");
    } else homeless.push(sentence);
  }
  if (elsewhere) elsewhere.textContent = homeless.join(" ");
  document.dispatchEvent(new Event("tilescope:problems"));
}
watch("value", place);
document.addEventListener("tilescope:form", place);
place();
