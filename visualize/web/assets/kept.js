// The last run, which the browser keeps for the next visit (see views/result/view.py).
watch("value", () => localStorage.setItem("tilescope-run", props.value));
