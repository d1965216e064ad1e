"""Predict the time of a launch from its compiled code and its memory traffic."""
