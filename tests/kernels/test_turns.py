"""Light addresses go first, and heavy ones wait. Some tests set the clock."""

from __future__ import annotations

import asyncio
import time

import pytest

from kernels.measuring.turns import BURST, HEAVY_RATE, MAX_RUNNING, Allowance, Turns, metered


def test_an_address_that_uses_much_waits_while_another_is_active():
    now = 100.0
    allowance = Allowance(lambda: now)
    assert allowance.charge("heavy", 2 * BURST) == 0.0  # alone
    allowance.charge("light", 1)
    assert allowance.charge("heavy", 0) == pytest.approx(BURST / HEAVY_RATE)
    assert allowance.charge("light", BURST - 1) == 0.0
    now += BURST / HEAVY_RATE
    allowance.charge("light", 1)
    assert allowance.charge("heavy", 0) == 0.0
    assert allowance.charge("heavy", HEAVY_RATE) == pytest.approx(1.0)
    now += 4.0
    assert allowance.charge("heavy", 10 * BURST) == 0.0  # the other has left


def test_heavy_addresses_share_a_rate_and_stay_heavy_until_all_is_forgiven():
    now = 100.0
    allowance = Allowance(lambda: now)
    for address in "abcd":
        allowance.charge(address, BURST + 40)
    assert allowance.heavy == set("abcd")
    assert allowance.charge("a", 0) == pytest.approx(40 / (HEAVY_RATE / 4))
    now += (BURST + 30) / (HEAVY_RATE / 4)
    allowance.charge("a", 0)
    assert "a" in allowance.heavy, "10 units are left"
    now += 1.0
    allowance.charge("a", 0)
    assert "a" not in allowance.heavy
    assert allowance.charge("a", 1e9) <= 4 * 4 * BURST / HEAVY_RATE, "no address waits for minutes"


def test_heavy_addresses_take_one_turn_at_a_time_and_wait_for_light_ones():
    async def scene():
        turns, running = Turns(), []

        async def take(address, until):
            async with turns.take(address):
                running.append(address)
                await until.wait()

        heavy, light = asyncio.Event(), asyncio.Event()
        turns.allowance.charge("heavy", 2 * BURST)
        tasks = [asyncio.create_task(take("heavy", heavy)) for _ in range(3)]
        tasks += [asyncio.create_task(take(f"light {number}", light)) for number in range(MAX_RUNNING)]
        await asyncio.sleep(0.01)
        assert running == ["heavy", *(f"light {number}" for number in range(MAX_RUNNING - 1))]
        waiting = asyncio.create_task(turns.wait_for_share("heavy", 1))
        await asyncio.wait([waiting], timeout=0.2)
        assert not waiting.done()
        light.set()
        await asyncio.wait_for(waiting, 30)
        heavy.set()
        await asyncio.gather(*tasks)
        assert running.count("heavy") == 3

    asyncio.run(scene())


def test_a_turn_is_charged_for_the_cpu_time_of_its_functions():
    def compute():
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass

    async def scene():
        turns = Turns()
        async with turns.take("a"):
            await asyncio.to_thread(metered(compute))
            await asyncio.to_thread(metered(time.sleep), 0.2)
        turns.allowance.charge("a", BURST - 10)
        assert not turns.allowance.heavy, "sleep is free"
        turns.allowance.charge("a", 10)
        assert turns.allowance.heavy, "it has used 5 units more than BURST"

    asyncio.run(scene())
