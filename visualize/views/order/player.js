// The player (see player.py): draws any step of a launch over the picture that carries one (`layout.meta`).
const root = element.querySelector(".player");
const play = root.querySelector(".play");
const scrub = root.querySelector("input");
const said = root.querySelector("output");
const speed = root.querySelector("select");
let own = null; // the picture
let pinned = null; // and its twin
let step = 0; // from 1; 0 is the whole launch
let told = null; // the step that the page's address holds
let sent = null; // the launch and the step that the server sent last
let playing = false;
const overlays = new Map(); // by plot

const pictures = () => [own, pinned?.plot.isConnected ? pinned : null].filter(Boolean);
const longest = () => Math.max(0, ...pictures().map((picture) => picture.longest));

// The picture is about to be drawn: lay the step over it.
function lay({ target, detail }) {
  const { meta } = detail.layout;
  if (!meta?.orders) return;
  if (own?.meta !== meta) {
    own = new Picture(target, meta);
    // An answer that was asked for before the last step, as when the compiler is done, sends the same step again.
    const now = `${detail.layout.uirevision} ${meta.step}`;
    if (sent === now && told !== null) meta.step = told;
    sent = now;
  }
  if (meta.step !== told) {
    told = meta.step;
    if (!playing && step !== told) {
      step = told;
      if (pinned?.plot.isConnected) pinned.plot.repaint();
    }
  }
  step = Math.min(step, longest());
  if (!root.dataset.opened) open();
  own.lay(detail, step);
  overlay(own);
  tell();
}

function overlay(picture) {
  const { plot } = picture;
  if (!overlays.has(plot)) overlays.set(plot, new Overlay(plot, picture === own));
  overlays.get(plot).take(picture);
}

// What is pinned steps along: program by program, both launches are at the same one.
function layPinned({ target, detail }) {
  const { meta } = detail.layout;
  if (!meta?.orders) return;
  if (pinned?.meta !== meta) pinned = new Picture(target, meta);
  pinned.lay(detail, step);
  overlay(pinned);
  if (own) tell();
}

function words() {
  if (!step) return "whole launch";
  return `${own.meta.name} ${written(step)} of ${written(longest())}`;
}

function tell() {
  scrub.max = longest();
  scrub.value = step;
  said.textContent = words();
  root.dataset.step = step;
  root.dataset.color = own.meta.color;
  root.querySelector(".back").disabled = step === 0;
  root.querySelector(".forward").disabled = step >= longest();
  const { first, unit } = own.meta, outlined = root.querySelector(".first");
  outlined.hidden = !first || !own.meta.panels;
  outlined.querySelector(".outlined").textContent = `first ${several(first, unit)}`;
  const spoken = pictures().flatMap((picture) => {
    const counts = picture.counts();
    overlays.get(picture.plot).show(counts, Math.max(...pictures().map(({ scale }) => scale)), step);
    return counts.map(([title, blocks, what]) => `${picture === own ? "" : "Pinned: "}${title}: ${blocks} ${what}`);
  });
  scrub.setAttribute("aria-valuetext", [words(), ...spoken].join("; "));
}

// Draws a step, and says when it has been drawn.
async function show(next) {
  step = Math.max(0, Math.min(next, longest()));
  await Promise.all(pictures().map(({ plot }) => plot.repaint()));
}

// What is seen stands in the page's address, so that a link opens it.
function keep() {
  if (told === step || !own) return;
  told = own.meta.step = step;
  document.dispatchEvent(new CustomEvent("tilescope:set", { detail: { name: "step", value: step } }));
}

function stop() {
  playing = false;
  play.textContent = "▶ Play";
  said.setAttribute("aria-live", "polite");
  keep();
}

async function start() {
  playing = true;
  play.textContent = "❚❚ Pause";
  said.setAttribute("aria-live", "off");
  if (step >= longest()) step = 0;
  // At the programs that are compared, it stops once; from there it goes on to the end.
  const last = own.meta.bound > step ? own.meta.bound : longest();
  let from = step, begun = performance.now(), pace = speed.value;
  await show(from + 1);
  while (playing && step < Math.min(last, longest())) {
    await new Promise(requestAnimationFrame);
    if (!playing) break;
    if (pace !== speed.value) [from, begun, pace] = [step - 1, performance.now(), speed.value];
    const rate = Number(pace) || Math.max(1, last / 8);
    const next = Math.min(last, from + 1 + Math.floor((performance.now() - begun) / 1000 * rate));
    if (next > step) await show(next);
  }
  if (playing) stop();
}

async function go(by) {
  playing = false;
  await show(step + by);
  stop();
}

function toggle() {
  if (playing) stop();
  else if (longest()) start();
}

// The page was opened without an address: it shows by itself, once, what can be seen here.
function open() {
  root.dataset.opened = "true";
  const query = new URLSearchParams(new URL(performance.getEntriesByType("navigation")[0]?.name ?? location.href).search);
  if ([...query.keys()].some((name) => !name.startsWith("__")) || step || !own.meta.bound) return;
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
    step = own.meta.bound;
    setTimeout(keep);
  } else setTimeout(() => { if (!step && !playing && root.offsetParent) start(); }, 900);
}

play.addEventListener("click", toggle);
root.querySelector(".back").addEventListener("click", () => go(-1));
root.querySelector(".forward").addEventListener("click", () => go(1));
scrub.addEventListener("input", () => { playing = false; show(Number(scrub.value)); });
scrub.addEventListener("change", stop);
document.addEventListener("tilescope:paint", lay);
document.addEventListener("tilescope:followed", () => { sent = null; });
document.addEventListener("tilescope:paint-twin", layPinned);
document.addEventListener("tilescope:cleared", ({ target }) => {
  overlays.get(target)?.place();
  if (target === own?.plot) return;
  overlays.get(target)?.layer.remove();
  overlays.delete(target);
});
document.addEventListener("tilescope:play", () => { if (root.offsetParent && own) toggle(); });
document.addEventListener("tilescope:step", ({ detail }) => { if (root.offsetParent && own) go(detail.by); });
new ResizeObserver(() => {
  for (const { plot, isStacked, fitsStacked } of pictures()) if (fitsStacked !== isStacked) plot.repaint();
}).observe(root);
document.querySelectorAll(".live-plot").forEach((one) => one.repaint?.());
