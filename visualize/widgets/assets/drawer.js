// Opens and closes the controls where the screen is narrow (see base.css).
const button = element.querySelector("button");
button.addEventListener("click", () => {
  const open = document.querySelector("#controls").classList.toggle("open");
  button.setAttribute("aria-expanded", open);
  button.textContent = open ? "Close" : "Controls";
});
