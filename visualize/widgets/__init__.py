"""The page's building blocks: a form made from knobs, the live plot, the player, the address. Gradio and JavaScript."""
