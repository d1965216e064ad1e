"""What is taken away from here: a run as a script or a notebook that needs nothing of ours, a timeline as a trace."""
