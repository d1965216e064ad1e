"""Counting with a fake Nsight Compute that is missing, denied, hangs, fails, or omits numbers."""

import os
import select

import pytest

from tests.waiting import PATIENCE_S
from tilescope.declare.experiment import from_json
from tilescope.measure import counters, ncu
from tilescope.measure.counters import sum_instructions
from tilescope.measure.ncu import LAUNCH, METRICS
from tilescope.sass.instructions import parse_sass

pytestmark = pytest.mark.xdist_group("compiled")

PAYLOAD = {
    "kernel": "transpose.tiled",
    "problem": {"M": 64, "N": 64, "dtype": "float32"},
    "gpu": "H200",
}


@pytest.fixture
def experiment():
    return from_json(PAYLOAD)


def refused(experiment, **options):
    with pytest.raises(ncu.CountingFailed) as error:
        counters.count([experiment], LAUNCH, "/tmp", **options)
    return error.value.failure


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        (
            'echo "==ERROR== ERR_NVGPUCTRPERM - no permission"; exit 1',
            "ncu_denied",
            "NVreg_RestrictProfilingToAdmin",
        ),
        ("echo something odd; exit 3", "ncu_failed", "status 3 and printed: something odd"),
    ],
)
def test_a_failure_of_ncu_is_explained(experiment, fake_ncu, script, kind, message):
    fake_ncu(script)
    failure = refused(experiment)
    assert failure.kind == kind
    assert message in failure.message


def test_a_hanging_ncu_is_killed_with_its_children(experiment, fake_ncu, tmp_path, monkeypatch):
    """The child holds a pipe open: reading it to its end returns once the child is dead."""
    os.mkfifo(tmp_path / "alive")
    fake_ncu(f"sleep 300 > {tmp_path}/alive & wait")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setattr(counters, "DEADLINE_S", 1.0)
    assert refused(experiment).kind == "timeout"
    os.set_blocking(reader, True)
    assert select.select([reader], [], [], PATIENCE_S)[0], "the child is still alive"
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_cancelled_count_ends(experiment, fake_ncu):
    fake_ncu("sleep 300")
    assert refused(experiment, on_start=lambda kill: kill()).kind == "ncu_failed"


# Units of ncu 2025.3 that are ratios.
BASE_UNITS = {
    "launch__shared_mem_per_block_dynamic": "byte/block",
    "launch__registers_per_thread": "register/thread",
    "sm__maximum_warps_per_active_cycle_pct": "%",
}


def raw_page(metrics=LAUNCH, launches=1, units=None, **changed):
    """Return ncu's raw page in base units: launch n has n of each metric that is not changed."""
    names = [METRICS[name] for name in metrics]
    units = {name: BASE_UNITS.get(name, "byte" if "bytes" in name else "") for name in names} | (
        units or {}
    )
    rows = [
        [launch, *(changed.get(name, launch) for name in names)]
        for launch in range(1, launches + 1)
    ]
    lines = [
        ",".join(f'"{cell}"' for cell in row)
        for row in (["ID", *names], ["", *units.values()], *rows)
    ]
    return "\n".join(["==PROF== noise", *lines, ""])


def test_counts_with_thousands_separators_are_parsed():
    changed = {METRICS["ld_sectors"]: "1,234,567", METRICS["dram_read_bytes"]: "1,500"}
    (launch,) = ncu.parse_launches(raw_page(**changed), LAUNCH)
    assert launch["ld_sectors"] == 1_234_567
    assert launch["dram_read_bytes"] == 1500
    assert set(launch) == set(LAUNCH)


OTHER_UNITS = {
    "dram_read_bytes": "Kbyte",
    "dram_write_bytes": "",
    "shared_bytes": "Kbyte/block",
    "ld_sectors": "Mbyte",
}


@pytest.mark.parametrize(
    ("page", "message"),
    [
        *(
            (raw_page(units={METRICS[n]: unit}), f"{METRICS[n]}.*not in bytes")
            for n, unit in OTHER_UNITS.items()
        ),
        *(
            (raw_page(**{METRICS["st_sectors"]: text}), "which is not a number")
            for text in ("", "nan", "n/a")
        ),
        (raw_page().replace(METRICS["st_requests"], "another"), METRICS["st_requests"]),
        ("==WARNING== No kernels were profiled.", "no launch"),
    ],
    ids=[*OTHER_UNITS, "empty", "nan", "n/a", "a missing metric", "no launch"],
)
def test_a_page_with_another_unit_or_without_a_number_is_an_error(page, message):
    with pytest.raises(ncu.CountingFailed, match=message) as error:
        ncu.parse_launches(page, LAUNCH)
    assert error.value.failure.kind == "ncu_failed"


@pytest.fixture
def compiled(compile_kernel, experiment):
    return compile_kernel(experiment)


def rows_of(compiled, **changed):
    """Return ncu's rows for a kernel: each instruction executed 10 times, with 3 lines, 4 sectors, 5 wavefronts."""
    columns = {
        "Instructions Executed": "10",
        "Address Space": "Global",
        "L1 Tag Requests Global": "3",
        "L2 Theoretical Sectors Global": "4",
        "L2 Theoretical Sectors Global Ideal": "2",
        "L1 Wavefronts Shared": "5",
        "L1 Wavefronts Shared Ideal": "5",
    } | changed
    return [
        {"Source": f"@!P1  {each.opcode} R0, R1", **columns} for each in parse_sass(compiled.sass)
    ]


def test_instructions_are_summed_by_operation_and_by_line_of_shared_memory(compiled):
    ops, shared = sum_instructions(rows_of(compiled), compiled.sass, compiled.operations)
    load, store = compiled.operations
    assert {(row.operation, row.opcode) for row in ops} == {
        (0, load.opcodes[0]),
        (1, store.opcodes[0]),
    }
    for row, made in zip(sorted(ops, key=lambda row: row.operation), (load, store), strict=True):
        assert (row.executed, row.lines, row.sectors, row.ideal_sectors) == tuple(
            made.instructions * n for n in (10, 3, 4, 2)
        )
    assert {row.source for row in shared} == {
        conversion.source for conversion in compiled.conversions
    }
    accesses = [each for each in parse_sass(compiled.sass) if each.traits.smem]
    assert sum(row.wavefronts for row in shared) == 5 * len(accesses)


def test_a_count_of_other_code_is_an_error(compiled):
    rows = rows_of(compiled)
    rows[5]["Source"] = "HMMA R0"
    with pytest.raises(ncu.CountingFailed, match="differs from the compiled code"):
        sum_instructions(rows, compiled.sass, compiled.operations)


def test_a_missing_column_is_an_error(compiled):
    rows = [
        {k: v for k, v in row.items() if k != "L1 Tag Requests Global"} for row in rows_of(compiled)
    ]
    with pytest.raises(ncu.CountingFailed, match="L1 Tag Requests Global"):
        sum_instructions(rows, compiled.sass, compiled.operations)
