"""WHAT is shown: models (NumPy), figures (Plotly), text, and the page with its panels (Gradio)."""
