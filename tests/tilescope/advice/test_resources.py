"""Findings about shared memory, of a launch that is made up."""

from types import SimpleNamespace

from tilescope.advice import resources


def test_a_changed_kernel_that_cannot_be_executed_saves_no_conflicts(monkeypatch):
    monkeypatch.setattr(resources, "_transpose_operands", lambda *_: [])
    access = SimpleNamespace(conflicts=60, user_lines=[("kernel.py", 5)], opcode="LDS")
    runner = SimpleNamespace(
        has_conflicts=True,
        kernel=SimpleNamespace(num_warps=1),
        inside=SimpleNamespace(shared=[access]),
        numbers=lambda _: {"shared_wavefronts": 100, "bank_conflicts": 60},
    )
    ((candidate,),) = resources.explain_conflicts(runner)
    assert candidate.cost({"shared_wavefronts": 40, "bank_conflicts": 0}) == 40
    assert candidate.cost({"registers": 32}) == 100
