"""Pictures of what the models predict and the runs measure. Plotly only; one figure family per file, one theme."""
