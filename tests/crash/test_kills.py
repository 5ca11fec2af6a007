"""The controller killed at random points of launches, sweeps, stops, restarts, rollbacks and moves in the queue."""

from __future__ import annotations

import pytest

from tests.crash.world import shown, world


@pytest.mark.slow
@pytest.mark.timeout(0)
async def test_killed_at_any_moment_nothing_is_lost_and_nothing_doubled(kills: int, crash_seed: int) -> None:
    async with world(crash_seed) as made:
        try:
            await made.control("mischief", {"slow": 0.03, "fails": 0.02, "lost": 0.02})
            for number in range(kills):
                await made.life()
                if number % 10 == 9:
                    await made.check_now()
            await made.settle()
            await made.check()
        except AssertionError as error:
            # What went wrong stands last: of a long report the end is what one gets to see.
            pytest.fail(f"the last operations:\n{shown(made.history)}\nRAYDECK_CRASH_SEED={crash_seed}: {error}")
        print(made.kills, made.died_in)
