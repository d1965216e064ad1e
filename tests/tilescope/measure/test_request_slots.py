"""Light clients go first, and heavy clients are throttled. Some tests set the clock."""

import asyncio
import time

import pytest

from tilescope.measure.request_slots import (
    BURST,
    HEAVY_RATE,
    MAX_RUNNING,
    LeakyBuckets,
    RequestSlots,
    charge_cpu_time,
)


def test_a_heavy_address_waits_while_another_is_active():
    now = 100.0
    buckets = LeakyBuckets(lambda: now)
    assert buckets.charge("heavy", 2 * BURST) == 0.0  # alone
    buckets.charge("light", 1)
    assert buckets.charge("heavy", 0) == pytest.approx(BURST / HEAVY_RATE)
    assert buckets.charge("light", BURST - 1) == 0.0
    now += BURST / HEAVY_RATE
    buckets.charge("light", 1)
    assert buckets.charge("heavy", 0) == 0.0
    assert buckets.charge("heavy", HEAVY_RATE) == pytest.approx(1.0)
    now += 4.0
    assert buckets.charge("heavy", 10 * BURST) == 0.0  # the other has left


def test_heavy_addresses_share_a_rate_and_stay_heavy_until_their_buckets_are_empty():
    now = 100.0
    buckets = LeakyBuckets(lambda: now)
    for address in "abcd":
        buckets.charge(address, BURST + 40)
    assert buckets.heavy == set("abcd")
    assert buckets.charge("a", 0) == pytest.approx(40 / (HEAVY_RATE / 4))
    now += (BURST + 30) / (HEAVY_RATE / 4)
    buckets.charge("a", 0)
    assert "a" in buckets.heavy, "10 units are left"
    now += 1.0
    buckets.charge("a", 0)
    assert "a" not in buckets.heavy
    assert buckets.charge("a", 1e9) <= 4 * 4 * BURST / HEAVY_RATE, "no address waits for minutes"


def test_heavy_addresses_share_one_slot_and_wait_for_light_ones():
    async def scene():
        slots = RequestSlots()
        running = []

        async def hold(address, until):
            async with slots.acquire(address):
                running.append(address)
                await until.wait()

        heavy = asyncio.Event()
        light = asyncio.Event()
        slots.buckets.charge("heavy", 2 * BURST)
        tasks = [asyncio.create_task(hold("heavy", heavy)) for _ in range(3)]
        tasks += [
            asyncio.create_task(hold(f"light {number}", light)) for number in range(MAX_RUNNING)
        ]
        for _ in range(20):
            await asyncio.sleep(0)
        assert running == ["heavy", *(f"light {number}" for number in range(MAX_RUNNING - 1))]
        waiting = asyncio.create_task(slots.throttle("heavy", 1))
        await asyncio.wait([waiting], timeout=0.2)
        assert not waiting.done()
        light.set()
        await waiting
        heavy.set()
        await asyncio.gather(*tasks)
        assert running.count("heavy") == 3

    asyncio.run(scene())


def test_requests_of_unknown_cost_count_before_they_end():
    """A new address can't take all slots, and gets more of them once its requests prove to be cheap."""

    async def scene():
        slots = RequestSlots()
        running = []
        end = asyncio.Event()

        async def hold(address):
            async with slots.acquire(address):
                running.append(address)
                await end.wait()

        crowd = [asyncio.create_task(hold("new")) for _ in range(4 * MAX_RUNNING)]
        await asyncio.sleep(0.01)
        assert running.count("new") < MAX_RUNNING / 2 + 1
        others = [asyncio.create_task(hold(f"other {number}")) for number in range(3)]
        await asyncio.sleep(0.01)
        assert running[-3:] == ["other 0", "other 1", "other 2"]
        end.set()
        await asyncio.wait_for(asyncio.gather(*crowd, *others), 30)
        assert not slots.buckets.heavy

    asyncio.run(scene())


def test_a_slot_is_charged_for_the_cpu_time_of_its_functions():
    def compute():
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass

    async def scene():
        slots = RequestSlots()
        slots.buckets = LeakyBuckets(lambda: 0.0)
        async with slots.acquire("a"):
            await asyncio.to_thread(charge_cpu_time(compute))
            await asyncio.to_thread(charge_cpu_time(time.sleep), 0.2)
        slots.buckets.charge("a", BURST - 10)
        assert not slots.buckets.heavy, "sleep is free"
        slots.buckets.charge("a", 10)
        assert slots.buckets.heavy, "it has used 5 units more than BURST"

    asyncio.run(scene())
