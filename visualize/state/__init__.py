"""What the page is set to: an Experiment and a View."""
