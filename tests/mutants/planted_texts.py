"""Defects in what is said: sentences, tables, and which numbers stand in them."""

from __future__ import annotations

from tests.mutants.defect import planted

TEXTS = (
    *planted(
        "visualize/text",
        "verdicts.py",
        "tests/panels/test_verdicts.py",
        ("for op in found.compiled or () if op.number == number]\n    for op", "for op in ()]\n    for op"),
        ('if "different" in kinds:', "if not kinds:"),
    ),
    *planted(
        "visualize/text",
        "coalescing_text.py",
        "tests/panels/test_verdicts.py",
        ("if number != worst and", "if number == worst and"),
        ("if op.launch.efficiency < 1:", "if op.launch.efficiency <= 1:"),
    ),
    *planted(
        "visualize/text",
        "prose.py",
        "tests/text/test_prose.py tests/text/test_strings_from_outside.py",
        ("Markup(escape(self.template)).format(*self.values)", "Markup(str(self))"),
        ("return escape(self.between).join(self.values)", "return Markup(self.between.join(map(str, self.values)))"),
        ("join(sentence for sentence in sentences if str(sentence))", "join(sentences)"),
    ),
    *planted(
        "visualize/text",
        "tables.py",
        "tests/text/test_tables.py tests/text/test_strings_from_outside.py",
        ('Markup("<caption>{}</caption>").format(caption)', 'Markup(f"<caption>{caption}</caption>")'),
        ('_joined("<td>{}</td>", row)', '_joined("<td>{}</td>", row[1:])'),
    ),
    *planted(
        "visualize/text",
        "schedule_text.py",
        "tests/text/test_schedule_text.py",
        ("Strong(percent(steps.tail_idle))", "Strong(percent(1 - steps.tail_idle))"),
        ("if len(steps.tiles) > 1:", "if len(steps.tiles) > 9:"),
        ("if schedule.slices == 1:", "if schedule.slices != 1:"),
        ("if found.blocks > found.row_major_blocks:", "if found.blocks < found.row_major_blocks:"),
        ("bought.times_ms[1] / bought.times_ms[0] - 1", "bought.times_ms[0] / bought.times_ms[1] - 1"),
    ),
    *planted(
        "visualize/text",
        "whatif_text.py",
        "tests/text/test_whatif_text.py",
        ("if total is not None and total < now:", "if total is not None and total <= now:"),
        ('f"{times:.3g} ×" if times > 1 else f"1 / {1 / times:.3g}"', 'f"{times:.3g} ×"'),
        ("len(set(cells)) == 1", "len(set(cells)) <= 2"),
    ),
    *planted(
        "visualize/text",
        "bank_conflicts.py",
        "tests/panels/test_verdicts.py",
        ("row.source == before.source]", "row.source == now.source]"),
        ("counted = sum(row.wavefronts for row in found) / executed", "counted = sum(row.wavefronts for row in found)"),
    ),
    *planted(
        "visualize/text",
        "reuse_claims.py",
        "tests/panels/test_reuse_panel.py",
        ("bought = 1 - compared.ratio", "bought = compared.ratio - 1"),
        ("if dram_ms >= binding.ms:", "if dram_ms < binding.ms:"),
        (
            "served = percent(1 - own.read_bytes / own.asked_bytes)",
            "served = percent(own.read_bytes / own.asked_bytes)",
        ),
    ),
)
