"""The scoreboard: what was predicted of every recorded launch, as a file, beside what was counted."""
