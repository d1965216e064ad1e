"""The inspection of two launches in a row."""

from tilescope.inside.inspect import join_launches
from tilescope.inside.report import ChangedTime, Inside


def test_the_times_of_two_launches_and_the_ends_of_their_ranges_add_up():
    short, long = (
        Inside(
            predicted_us=us,
            predicted_warm_us=us,
            range_us=(us / 2, 2 * us),
            bound_by=name,
            by_resource_us={"L2": us},
            changes=(ChangedTime("no bank conflicts", 0.9 * us, {}),),
        )
        for us, name in ((10.0, "DRAM"), (30.0, "L2"))
    )
    joined, _ = join_launches((short, None), (long, None))
    assert (joined.predicted_us, joined.range_us) == (40, (20, 80))
    assert (joined.bound_by, joined.by_resource_us) == ("L2", {"L2": 40})
    assert [each.predicted_us for each in joined.changes] == [37]


def test_two_launches_have_no_time_if_one_has_none():
    known = Inside(predicted_us=10.0, range_us=(5, 20))
    for pair in (
        (known, Inside(not_predicted="A lock.")),
        (Inside(not_predicted="A lock."), known),
    ):
        joined, _ = join_launches(*((each, None) for each in pair))
        assert (joined.predicted_us, joined.range_us) == (None, None)
        assert joined.not_predicted == "A lock."
