"""What is said of a result: sentences, tables, causes. No Gradio."""
