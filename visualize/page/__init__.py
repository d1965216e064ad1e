"""The page put together: its layout, its handlers, its API, and how it is served. Gradio."""
