"""One tab, or one panel of a tab, a file. Gradio."""
