"""The page, one panel a file. Gradio."""
