"""The page: its HTML, handlers, scripts, API, tours and guard. Gradio."""
