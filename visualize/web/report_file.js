// The page in a file: replies to its messages with the updates that the file contains (see report_file.py).
import { make } from "./assets/dom.js";
import { inflateText } from "./assets/figures.js";
import { connect, receive } from "./assets/messages.js";
import { start } from "./assets/page.js";

const read = (id) => inflateText(document.getElementById(id).textContent);
const { script, opened, updates, pieces, given } = JSON.parse(await read("report"));

function reply(event, { number, open, follow, settings }) {
  if (event !== "input") return;
  const fields = settings ?? Object.fromEntries(new URLSearchParams(open ?? follow));
  const view = { ...opened[fields.launch] ?? opened[0], ...fields }, { tab, launch, operation, model } = view;
  const parts = updates[[tab, launch]] ?? updates[[tab, launch, operation]] ?? updates[[tab, launch, operation, model]];
  const query = new URLSearchParams(view).toString();
  const slots = { settings: JSON.stringify(view), tab, link: JSON.stringify({ full: query, short: query, title: script, shows: "script" }) };
  for (const [name, places] of Object.entries(parts)) slots[name] = places.map((place) => pieces[place]).join("");
  if (open !== undefined) slots["verdicts-fold"] = "open";
  receive(JSON.stringify({ reply_to: number, slots }));
}

// Paper is light.
const dark = matchMedia("screen and (prefers-color-scheme: dark)");
const setTheme = () => document.body.classList.toggle("dark", dark.matches);
dark.addEventListener("change", setTheme);
setTheme();
document.head.append(make("script", {}, await read("plotly")));
connect(reply);
start(document.querySelector("#stage"), "", given);
