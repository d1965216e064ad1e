// The last run, which the browser keeps for the next visit (see kept_run.py).
watch("value", () => localStorage.setItem("tilescope-run", props.value));
