"""The page's views, one folder each, and the text, tables and theme that they share. No Gradio."""
