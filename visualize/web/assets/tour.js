// The bar of a guided tour (see tour_bar.py). It follows the address, and asks for the stop that stands there.
const place = element.querySelector(".tour-place");
let wanted = ""; // "tour stop" of the address; "" without a tour
let answered = ""; // the stop whose question has been answered

function addressed() {
  const now = new URLSearchParams(location.search), tour = now.get("tour");
  const stop = Number(now.get("stop") || 1), before = wanted;
  wanted = given.tours.includes(tour) ? `${tour} ${stop}` : "";
  document.body.classList.toggle("touring", wanted !== "");
  if (wanted === before) return;
  closeMenu();
  dispatchEvent(new Event("resize")); // pictures give the bar its place
  answered = "";
  if (!wanted) {
    place.replaceChildren();
    asks();
    return;
  }
  send.act("tour", { tour, stop });
}

function show() {
  if (!props.value) return;
  const { tour, stop, html, query } = JSON.parse(props.value);
  if (html === undefined || `${tour} ${stop}` !== wanted) return; // of a stop that has been left
  place.innerHTML = html;
  document.body.dataset.stop = query;
  document.dispatchEvent(new Event("tilescope:stop"));
  asks();
}

// While a question is open the page behind it is covered, and so is the sentence, which would answer it.
function asks() {
  const open = wanted !== "" && answered !== wanted && place.querySelector(".question") !== null;
  document.body.classList.toggle("asked", open);
  document.querySelector("#results").inert = open;
}

function choose(button) {
  if (button.disabled) return;
  for (const choice of place.querySelectorAll(".choice")) {
    choice.classList.toggle("right", choice.dataset.right === "yes");
    choice.classList.toggle("wrong", choice === button && choice.dataset.right === "no");
    choice.setAttribute("aria-pressed", choice === button);
  }
  const onward = place.querySelector(".reveal");
  place.querySelector(".lead").textContent = button.dataset.right === "yes" ? "Right." : "No: the right one is marked.";
  onward.textContent = "Show why";
  onward.focus();
}

function reveal() {
  answered = wanted;
  asks();
  dispatchEvent(new Event("resize"));
}

function closeMenu() {
  document.querySelector(".tours[open]")?.removeAttribute("open");
}

function leave() {
  document.dispatchEvent(new CustomEvent("tilescope:follow", { detail: document.body.dataset.address }));
}

function go(by) {
  if (by > 0 && document.body.classList.contains("asked")) reveal();
  else place.querySelector(by > 0 ? ".next" : ".back")?.click();
}

place.addEventListener("click", (event) => {
  const choice = event.target.closest(".choice");
  if (choice) choose(choice);
  else if (event.target.closest(".reveal")) reveal();
  else if (event.target.closest(".leave")) leave();
});
document.addEventListener("tilescope:tour", ({ detail }) => {
  if (detail.leave) leave();
  else if (detail.choose) place.querySelectorAll(".choice")[detail.choose - 1]?.click();
  else go(detail.by);
});
document.addEventListener("click", (event) => { if (!event.target.closest(".tours")) closeMenu(); });
document.addEventListener("tilescope:address", addressed);
watch("value", show);
addressed();
