// The bar of a guided tour (see tours/guide.py). It shows the stop that the page's address names.
const place = element.querySelector(".tour-place");
let current = ""; // "tour stop" of the address; "" without a tour
let revealed = ""; // the stop whose answer has been revealed

function addressed() {
  const now = new URLSearchParams(location.search), tour = now.get("tour");
  const stop = Number(now.get("stop") || 1), before = current;
  current = given.tours.includes(tour) ? `${tour} ${stop}` : "";
  document.body.classList.toggle("touring", current !== "");
  if (current === before) return;
  closeMenu();
  dispatchEvent(new Event("resize")); // pictures give the bar its place
  revealed = "";
  if (!current) {
    place.replaceChildren();
    asks();
    return;
  }
  send.act("tour", { tour, stop });
}

function show() {
  if (!props.value) return;
  const { tour, stop, html, query } = JSON.parse(props.value);
  if (html === undefined || `${tour} ${stop}` !== current) return; // a stop that the page has left
  place.innerHTML = html;
  document.body.dataset.stop = query;
  document.dispatchEvent(new Event("tilescope:stop"));
  asks();
}

// An open question blurs the picture and hides the sentence, because both would answer it.
function asks() {
  const open = current !== "" && revealed !== current && place.querySelector(".question") !== null;
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
  place.querySelector(".lead").textContent = button.dataset.right === "yes" ? "Right." : "No: the right one is marked.";
  place.querySelector(".next").focus();
}

function reveal() {
  document.activeElement?.blur(); // Space plays the picture, not Next
  revealed = current;
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
  place.querySelector(by > 0 ? ".next" : ".back")?.click();
}

place.addEventListener("click", (event) => {
  const choice = event.target.closest(".choice");
  if (choice) choose(choice);
  else if (event.target.closest(".next") && document.body.classList.contains("asked")) {
    // Next reveals the answer first. The link must not be followed.
    event.preventDefault();
    event.stopPropagation();
    reveal();
  } else if (event.target.closest(".leave")) leave();
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
