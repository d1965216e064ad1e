// Opens and closes the controls where the screen is narrow (see base.css).
const button = element.querySelector("button");
button.addEventListener("click", () => {
  const open = document.querySelector("#controls").classList.toggle("open");
  button.setAttribute("aria-expanded", open);
  button.textContent = open ? "Close" : "Controls";
  // What the controls change stays in view above them.
  const picture = [...document.querySelectorAll(".picture")].find((node) => node.offsetParent);
  if (open) picture?.scrollIntoView({ block: "start" });
});
