"""Sentences about a finding, and the names of its numbers."""

from collections.abc import Iterator

from tilescope.captures.content import TIME, Finding
from tilescope.numbers import milliseconds, percent

# The operations that a number counts, by the prefix of its name.
_OWNERS = {
    "ld": "loads",
    "st": "stores",
    "red": "atomics without a result",
    "atom": "atomics with a result",
    "tma_ld": "TMA loads",
    "tma_st": "TMA stores",
    "gmma": "matrix instructions",
    "synchronous": "synchronous loads",
    "shared": "shared memory",
    "tensor": "tensor memory",
    "spill_traffic": "spill traffic",
}


def in_words(name: str) -> str:
    """Return the name of a number for use in a sentence.

    >>> in_words("ld_sectors"), in_words("shared_bytes"), in_words("bank_conflicts"), in_words(TIME)
    ('sectors of loads', 'bytes of shared memory', 'bank conflicts', 'predicted time')
    """
    if name.startswith("predicted"):
        return "predicted time"
    if name == "programs_per_sm":
        return "programs per SM"
    owner, _, unit = name.rpartition("_")
    return f"{unit} of {_OWNERS[owner]}" if owner in _OWNERS else name.replace("_", " ")


def describe_time(finding: Finding) -> str:
    """Return the predicted times without and with a change; "" if they are unknown."""
    if finding.saving is None:
        return ""
    before, after = (
        milliseconds(numbers[TIME] / 1e6) for numbers in (finding.before, finding.after)
    )
    return f"{before} → {after} (−{percent(finding.saving)})"


def describe_counts(finding: Finding) -> str:
    """Return the other numbers that a change alters; "" if there are none."""
    return ", ".join(
        f"{in_words(name)} {number:,} → {finding.after[name]:,}"
        for name, number in finding.before.items()
        if name != TIME and number != finding.after[name]
    )


def describe_finding(finding: Finding) -> Iterator[str]:
    """Yield the fact, the change, its effect, and what must hold for the result to stay the same."""
    yield finding.text
    if finding.change:
        yield finding.change
    time = describe_time(finding)
    parts = [f"predicted time {time}" if time else "", describe_counts(finding)]
    if effect := ", ".join(filter(None, parts)):
        yield f"Tried: {effect}."
    if finding.needs:
        yield finding.needs
