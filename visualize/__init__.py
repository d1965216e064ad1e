"""WHAT is shown: models (NumPy), figures (Plotly), panels (Gradio)."""
