// The bar of a guided tour (see tours.py). It shows the stop that the page's address names, and first its question.
import { emit, given, listen } from "./dom.js";
import { send } from "./messages.js";

export default function mountTour(element) {
  const bar = element.querySelector(".tour-bar");
  // "tour stop", from the address; "" without a tour.
  let current = "";
  // Whether the reader has gone past the current stop's question.
  let isRevealed = false;

  function followAddress() {
    const query = new URLSearchParams(location.search), tour = query.get("tour"), stop = Number(query.get("stop") || 1);
    const before = current;
    current = given.tours.includes(tour) ? `${tour} ${stop}` : "";
    if (current === before) return;
    isRevealed = false;
    if (document.body.classList.toggle("touring", current !== "")) send.act("tour", { tour, stop });
    else bar.replaceChildren();
    updateQuestion();
  }

  function showStop(value) {
    const { tour, stop, html, query } = JSON.parse(value || "{}");
    // The reader has left this stop.
    if (`${tour} ${stop}` !== current) return;
    bar.innerHTML = html;
    document.body.dataset.stop = query;
    emit("stop");
    updateQuestion();
  }

  // While a question is open, the page hides the numbers and plots that would answer it (see tour.css).
  function updateQuestion() {
    const isOpen = !isRevealed && bar.querySelector(".question") !== null;
    document.body.classList.toggle("asked", isOpen);
    document.body.classList.remove("answered");
    document.querySelector("#results").inert = isOpen;
  }

  function choose(button) {
    for (const choice of bar.querySelectorAll(".choice")) choice.ariaPressed = choice === button;
    document.body.classList.add("answered");
    document.querySelector("#results").inert = false;
    bar.querySelector(".verdict").textContent = button.dataset.right === "yes" ? "Right." : "No. The right answer is marked ✓.";
    bar.querySelector(".next").focus();
  }

  function reveal(event) {
    // Stay at this stop: Next is a link.
    event.preventDefault();
    event.stopPropagation();
    // Space plays the picture, not Next.
    document.activeElement?.blur();
    isRevealed = true;
    updateQuestion();
  }

  bar.addEventListener("click", (event) => {
    const pressed = (style) => event.target.closest(style);
    if (pressed(".choice")) choose(pressed(".choice"));
    else if (pressed(".next") && document.body.classList.contains("asked")) reveal(event);
    else if (pressed(".leave")) emit("follow", document.body.dataset.address);
  });
  listen("address", followAddress);
  new ResizeObserver(() => {
    // "" removes the property.
    document.body.style.setProperty("--bar", bar.offsetHeight ? `${bar.offsetHeight}px` : "");
  }).observe(bar);
  followAddress();
  return showStop;
}
