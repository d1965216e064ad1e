// A line at the top of the page while the answer to what was set or opened is awaited, if it takes longer than most do.
const AFTER = 70; // milliseconds: with a frame, a tenth of a second
const line = element.querySelector("div");
let open = 0, timer = 0;

function counted(by) {
  open += by;
  if (open && !timer) timer = setTimeout(() => { line.hidden = false; }, AFTER);
  if (open) return;
  clearTimeout(timer);
  timer = 0;
  line.hidden = true;
}

// Gradio's own progress takes a browser milliseconds for each output, so the request itself is watched.
const { fetch } = window;
window.fetch = (...call) => {
  const answer = fetch(...call);
  if (String(call[0]?.url ?? call[0]).includes("/run/predict")) {
    counted(1);
    const ended = () => counted(-1);
    answer.then(ended, ended);
  }
  return answer;
};
