"""The page's views: what is shown of an experiment, one folder per view. No Gradio."""
