// The player (see view.py): draws any step of a launch over the picture that carries one (`layout.meta`).
import { Marks } from "./marks.js";
import { Overlay } from "./touch.js";
import { emit, given, isStill, listen } from "../../web/assets/dom.js";
import { settings } from "../../web/assets/messages.js";
import { counted, written } from "../../web/assets/numbers.js";

export default function mountPlayer(element) {
  const root = element.querySelector(".player");
  const [play, back, forward, scrub, output, outlined] = root.querySelectorAll("button, input, output, .first");
  let own = null, pinned = null; // overlays
  // Marks on the tiles of a run.
  let marks = null;
  // From 1; 0 is the whole launch.
  let step = 0;
  // The step in the page's address.
  let addressed = null;
  // The latest launch and step from the server.
  let sent = null;
  let isOpened = false;
  let isPlaying = false;
  // The latest launch's unit of a step, and the setting that counts in this unit.
  let launch = {};

  const overlays = () => [own, pinned].filter(Boolean);
  const longest = () => Math.max(0, ...overlays().map((overlay) => overlay.picture.longest));
  // Playing, and an animation, end at the programs that the headline compares.
  const last = () => own?.picture.meta.bound || longest();

  function stepName() {
    const { meta, orders: [order] } = own.picture, pid = order.ends ? "" : `: pid ${written(order.program(order.end(step) - 1))}`;
    return step ? `${meta.name} ${written(step)} of ${written(longest())}${pid}` : "whole launch";
  }

  // The current picture is about to be drawn: lay the step over it.
  function lay({ target, detail }) {
    const meta = detail.layout.meta;
    if (!meta?.orders) return;
    own ??= new Overlay(target, true);
    if (own.take(meta)) {
      // A reply to an earlier request, such as the compiler's, repeats the step of that request.
      const revision = `${detail.layout.uirevision} ${meta.step}`;
      if (sent === revision && addressed !== null) meta.step = addressed;
      sent = revision;
      followUnit(meta);
    }
    if (meta.step !== addressed && meta.step !== step && !isPlaying) {
      step = meta.step;
      pinned?.plot.repaint();
    }
    addressed = meta.step;
    own.marks = marks;
    step = Math.min(step, longest());
    if (!isOpened) open();
    own.lay(detail, step);
    tell();
  }

  // Changed sizes may turn steps of single programs into waves: the player and the comparison start again.
  function followUnit(meta) {
    const before = launch;
    launch = { unit: meta.name, first: settings.first, kernel: settings.kernel };
    // Another kernel starts at the step that came with it.
    if (isPlaying && before.kernel !== launch.kernel) {
      setPlaying(false);
      step = meta.step;
    }
    if (!before.unit || before.unit === meta.name) return;
    const restart = (name, redraw) => setTimeout(emit, 0, "set", { name, value: 0, redraw });
    // A step that came with the new sizes stays.
    if (isPlaying || meta.step === step) {
      setPlaying(false);
      step = meta.step = 0;
      restart("step", false);
    }
    if (before.first && before.first === launch.first) restart("first", true);
  }

  // The pinned picture follows the current one: program by program, both launches are at the same step.
  function layPinned({ target, detail }) {
    if (!detail.layout.meta?.orders) return;
    pinned ??= new Overlay(target, false);
    pinned.take(detail.layout.meta);
    pinned.lay(detail, step);
    if (own) tell();
  }

  function tell() {
    const { meta } = own.picture, scale = Math.max(...overlays().map((overlay) => overlay.picture.scale));
    scrub.max = longest();
    scrub.value = step;
    output.textContent = stepName();
    root.dataset.step = step;
    root.hidden = false;
    back.disabled = step === 0;
    forward.disabled = step >= longest();
    outlined.hidden = !meta.first || !meta.panels;
    outlined.lastChild.textContent = `first ${counted(meta.first, meta.unit)}`;
    scrub.ariaValueText = [stepName(), ...overlays().flatMap((overlay) => overlay.writeLoads(scale))].join("; ");
  }

  async function show(next) {
    step = Math.max(0, Math.min(next, longest()));
    await Promise.all(overlays().map((overlay) => overlay.plot.repaint()));
  }

  function setPlaying(next) {
    isPlaying = next;
    play.textContent = next ? "❚❚ Pause" : "▶ Play";
    output.ariaLive = next ? "off" : "polite";
  }

  // The address contains the current step, so that a link opens it.
  function stop() {
    setPlaying(false);
    if (addressed === step || !own) return;
    addressed = own.picture.meta.step = step;
    emit("set", { name: "step", value: step });
  }

  async function start() {
    setPlaying(true);
    if (step >= last()) step = 0;
    // `position` has a fraction.
    let position = step + 1, time = performance.now();
    await show(position);
    while (isPlaying && step < last()) {
      await new Promise(requestAnimationFrame);
      const now = performance.now();
      position = Math.min(last(), position + (now - time) / 1000 * Math.max(1, last() / 8));
      time = now;
      if (isPlaying && Math.floor(position) > step) await show(Math.floor(position));
    }
    if (isPlaying) stop();
  }

  function pause(next) {
    isPlaying = false;
    return show(next);
  }

  const move = (by) => pause(step + by).then(stop);

  // If the page was opened without settings in its address, it plays once.
  function open() {
    isOpened = true;
    if (given.has_settings || step || !own.picture.meta.bound) return;
    if (isStill()) {
      step = own.picture.meta.bound;
      setTimeout(stop);
    } else setTimeout(() => { if (!step && !isPlaying && root.offsetParent) start(); }, 900);
  }

  play.addEventListener("click", () => (isPlaying ? stop() : start()));
  scrub.addEventListener("input", () => pause(Number(scrub.value)));
  scrub.addEventListener("change", stop);
  back.addEventListener("click", () => move(-1));
  forward.addEventListener("click", () => move(1));
  listen("paint", lay);
  listen("paint-pinned", layPinned);
  listen("save", ({ target, detail }) => {
    const overlay = overlays().find((each) => each.plot === target);
    if (!overlay) return;
    setPlaying(false);
    Object.assign(detail, {
      over: [...overlay.layer.querySelectorAll(".corner:not([hidden]), canvas")],
      steps: { step, count: last(), show },
    });
  });
  listen("followed", () => {
    sent = null;
    launch = { kernel: launch.kernel };
  });
  listen("cleared", ({ target }) => {
    if (target === own?.plot) {
      own.place();
      setPlaying(false);
      root.hidden = true;
    }
    if (target !== pinned?.plot) return;
    pinned.layer.remove();
    pinned = null;
  });
  listen("marks", (event) => {
    marks?.remove();
    marks = event.detail && new Marks(event.detail);
    own?.plot.repaint();
  });
}
