"""What a launch does, as JSON and as text."""
