"""One tab, or one panel of a tab, per file. Gradio."""
