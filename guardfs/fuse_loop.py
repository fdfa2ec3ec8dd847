"""How requests are taken from the kernel: pyfuse3's loop, with a quicker stand-in for what it asks of trio.

pyfuse3 asks trio for a lock and for a readable descriptor before each request, which costs more than most requests.
It looks ``trio`` up as an attribute of its own module, since its asyncio support replaces that one. Here a stand-in
does so: its lock is taken without a checkpoint, its wait looks at the descriptor first. trio gets its turn where a
handler awaits, where no request comes, and after ``_TURN_S`` at the latest.

Must not know what a request asks for. Used by the daemon.
"""

import os
import select
import time
from typing import Any, Literal

import pyfuse3
import trio
import trio.lowlevel

_IDLE_WORKERS = 1
_WORKERS = 64
"""Requests in flight; each that waits in a worker thread or for a file's lock takes one."""
_TURN_S = 0.001
"""The longest stretch of requests without a turn for the rest of the daemon."""
_LINGER_S = 0.0002
"""How long a silent descriptor is asked again and again before trio waits for it: a busy client is back sooner, and
to fall asleep and be woken costs more than most requests. An idle daemon does neither."""

Loop = Literal["quick", "stock"]

_binding: Any = pyfuse3


async def serve(loop: Loop) -> None:
    """Answer requests until the mount is gone; a handler's exceptions never reach this."""
    if loop == "stock" or not can_be_quick():
        await _stock()
        return
    _binding.trio = StandIn()
    try:
        await _stock()
    finally:
        _binding.trio = trio


async def _stock() -> None:
    await pyfuse3.main(min_tasks=_IDLE_WORKERS, max_tasks=_WORKERS)


def can_be_quick() -> bool:
    """Whether this pyfuse3 still has what the quick loop stands on."""
    return getattr(_binding, "trio", None) is trio


class StandIn:
    """What pyfuse3's loop uses of ``trio``; all of it belongs to the event loop."""

    ClosedResourceError = trio.ClosedResourceError
    open_nursery = staticmethod(trio.open_nursery)

    def __init__(self) -> None:
        self.lowlevel = LowLevel()

    def Lock(self) -> "Turnstile":  # noqa: N802 -- trio's name
        """The lock around each wait for a request."""
        return Turnstile()


class LowLevel:
    """Waits for requests, with a look at the descriptor before trio is asked."""

    current_task = staticmethod(trio.lowlevel.current_task)
    current_trio_token = staticmethod(trio.lowlevel.current_trio_token)

    def __init__(self) -> None:
        self._closing = False
        self._turned_s = 0.0
        self._poll = select.poll()
        self._linger_s = _LINGER_S if len(os.sched_getaffinity(0)) > 1 else 0.0

    async def wait_readable(self, fd: int) -> None:
        """Return when a request is there.

        Raises:
            trio.ClosedResourceError: the descriptor is about to be closed.
        """
        if time.monotonic() - self._turned_s > _TURN_S:
            await trio.lowlevel.checkpoint()
            self._turned_s = time.monotonic()
        if self._closing:
            raise trio.ClosedResourceError
        if not self._comes_soon(fd):
            await trio.lowlevel.wait_readable(fd)
            self._turned_s = time.monotonic()

    def _comes_soon(self, fd: int) -> bool:
        self._poll.register(fd, select.POLLIN)
        if self._poll.poll(0):
            return True
        deadline = time.monotonic() + self._linger_s
        while time.monotonic() < deadline:
            os.sched_yield()  # Whoever wants this processor may be the client.
            if self._poll.poll(0):
                return True
        return False

    def notify_closing(self, fd: int) -> None:
        """Wake whoever waits, and let nobody wait again."""
        self._closing = True
        trio.lowlevel.notify_closing(fd)


class Turnstile:
    """A lock without a checkpoint where it is free, and unfair: a worker that comes back at once goes on."""

    def __init__(self) -> None:
        self._held = False
        self._waiting = trio.lowlevel.ParkingLot()

    async def __aenter__(self) -> None:
        while self._held:
            await self._waiting.park()
        self._held = True

    async def __aexit__(self, *_: object) -> None:
        self._held = False
        if self._waiting:
            self._waiting.unpark()
