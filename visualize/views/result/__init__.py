"""The Result view: one run, its check, its error and its times."""
