"""Listings of SASS."""


def make_listing(text):
    """Return a listing of instructions, some after their source line. A line with a colon at its end is a label."""
    lines = []
    for line in map(str.strip, text.strip().splitlines()):
        place, _, instruction = line.partition(" ")
        if place.isdigit():
            lines.append(f'\t//## File "k.py", line {place}')
        else:
            instruction = line
        is_label = instruction.endswith(":")
        lines.append(instruction if is_label else f"        /*0000*/        {instruction} ;")
    return "\n".join(lines)
