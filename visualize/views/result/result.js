// Tells the page that a run's numbers were written, so that it can mark them when the controls move on (see link.js).
function told() {
  for (const time of element.querySelectorAll("time")) time.textContent = local(new Date(time.dateTime));
  document.dispatchEvent(new Event("tilescope:result"));
}

// A time as the reader's clock has it: "yesterday 14:02", or with its date where it is older.
function local(time) {
  const midnight = (day) => new Date(day.getFullYear(), day.getMonth(), day.getDate());
  const days = Math.round((midnight(new Date()) - midnight(time)) / 86_400_000); // rounded: a day may have 23 hours
  const day = { 0: "today", 1: "yesterday" }[days] ?? time.toLocaleDateString("en", { day: "numeric", month: "short", year: "numeric" });
  return `${day} ${time.toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" })}`;
}

watch("value", told);
told();
