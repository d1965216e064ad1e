// Tells the page that a run's numbers were written, so that it can mark them when the controls move on (see link.js).
const told = () => document.dispatchEvent(new Event("tilescope:result"));
watch("value", told);
told();
