"""Pictures of what the models predict and the runs measure. Plotly only; one figure family a file, one theme."""
