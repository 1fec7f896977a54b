"""Who has a console when several want it."""

from __future__ import annotations

import asyncio

from virtfleet.handler.access.seats import End, Seats


async def sit(seats: Seats, key: str, order: list[str], name: str) -> End:
    async with seats.take(key) as seat:
        order.append(f"{name} in")
        end = await seat.lost
        order.append(f"{name} out")
        return end


async def settle() -> None:
    """Let everybody go as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_newcomer_has_the_seat_when_the_one_before_has_left() -> None:
    seats, order = Seats(), list[str]()
    first = asyncio.create_task(sit(seats, "vm", order, "first"))
    await settle()
    second = asyncio.create_task(sit(seats, "vm", order, "second"))
    await settle()
    assert order == ["first in", "first out", "second in"]
    assert await first is End.TAKEN
    seats.clear(End.STOPPING)
    assert await second is End.STOPPING
    assert not seats.taken("vm")


async def test_one_who_is_overtaken_while_waiting_leaves_at_once() -> None:
    seats, order = Seats(), list[str]()
    async with seats.take("vm") as present:
        waiting = [asyncio.create_task(sit(seats, "vm", order, str(number))) for number in range(3)]
        await settle()
        assert present.lost.result() is End.TAKEN
        assert order == [], "the seat is not free yet"
    await settle()
    assert order == ["0 in", "0 out", "1 in", "1 out", "2 in"]
    waiting[2].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not seats.taken("vm")


async def test_a_seat_that_somebody_gave_up_waiting_for_still_has_to_be_left_first() -> None:
    seats, order = Seats(), list[str]()
    async with seats.take("vm"):
        waiting = asyncio.create_task(sit(seats, "vm", order, "impatient"))
        await settle()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        next_one = asyncio.create_task(sit(seats, "vm", order, "next"))
        await settle()
        assert order == []
    await settle()
    assert order == ["next in"]
    next_one.cancel()
    await asyncio.gather(next_one, return_exceptions=True)
    assert not seats.taken("vm")


async def test_seats_of_other_vms_are_left_alone() -> None:
    seats = Seats()
    async with seats.take("one") as one, seats.take("other"):
        assert not one.lost.done()
