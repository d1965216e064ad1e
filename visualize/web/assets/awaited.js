// A line at the top of the page while a redraw is awaited, if it takes longer than most do.
const AFTER = 70; // milliseconds: with a frame, a tenth of a second
const line = element.querySelector("div");
let timer = 0;
document.addEventListener("tilescope:awaited", ({ detail: isAwaited }) => {
  if (isAwaited && !timer) timer = setTimeout(() => { line.hidden = false; }, AFTER);
  if (isAwaited) return;
  clearTimeout(timer);
  timer = 0;
  line.hidden = true;
});
