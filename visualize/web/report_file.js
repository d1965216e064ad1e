// The page in a file: replies to its messages with the updates that the file contains (see report_file.py).
import { listen, make } from "./assets/dom.js";
import { inflateText } from "./assets/figures.js";
import { connect, receive, settings } from "./assets/messages.js";
import { start } from "./assets/page.js";

const read = (id) => inflateText(document.getElementById(id).textContent);
const { script, launches, opened, updates, pieces, given } = JSON.parse(await read("report"));

const find = ({ tab, launch, operation, model }) =>
  updates[[tab, launch]] ?? updates[[tab, launch, operation]] ?? updates[[tab, launch, operation, model]];

function reply(message) {
  if ("action" in message) return;
  const fields = message.settings ?? { tab: settings.tab, ...Object.fromEntries(new URLSearchParams(message.open ?? message.follow)) };
  const first = opened[fields.launch] ?? opened[0], named = { ...first, ...fields };
  // An address may name what the script does not have.
  const view = find(named) ? named : first, full = new URLSearchParams(view).toString();
  const slots = { settings: JSON.stringify(view), tab: view.tab, launches };
  for (const [name, places] of Object.entries(find(view))) slots[name] = places.map((place) => pieces[place]).join("");
  slots.link = JSON.stringify({ full, short: full, title: script, shows: "script" });
  if ("open" in message) slots["operations-fold"] = "open";
  receive(JSON.stringify(slots));
}

listen("address", () => {
  document.querySelectorAll("#launches tbody tr").forEach((row, number) => { row.ariaCurrent = Object.keys(opened)[number] === String(settings.launch); });
});

// Paper is light.
const dark = matchMedia("screen and (prefers-color-scheme: dark)");
const setTheme = () => document.body.classList.toggle("dark", dark.matches);
dark.addEventListener("change", setTheme);
setTheme();
document.head.append(make("script", {}, await read("plotly")));
settings.tab = opened[0].tab;
connect(reply);
start(document.querySelector("#stage"), "", given);
