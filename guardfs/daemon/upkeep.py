"""What goes on beside the requests: writing the store, proving outsiders, dropping pages, reaping sessions.

Handlers put work in by plain calls that never wait. A failure in here is logged and costs that one step: it must
not take the mount away from people who work on it.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pyfuse3
import trio

from guardfs.core.model import ProcId
from guardfs.errors import StoreError, where
from guardfs.guard.rulebook import Rulebook
from guardfs.state.store import Store

_FLUSH_S = 0.5
"""Seconds that changes gather before they are written; denials do not wait."""
_RETRY_S = 5.0
"""Seconds until a store that failed is tried again."""
_REAP_S = 30.0
"""Seconds between two looks for sessions whose processes are all gone."""
_SHED_S = 1.0
"""Seconds between two looks at how many nodes the kernel's cache holds."""
_QUEUE = 1024
"""Outsiders, and nodes with stale pages, that may wait; both can be spared when it is full."""


class Upkeep:
    """The queues that handlers fill and the tasks that empty them."""

    def __init__(self, store: Store, log: Any) -> None:
        self._store = store
        self._log = log
        self._outsiders_in, self._outsiders = trio.open_memory_channel[ProcId](_QUEUE)
        self._stale_in, self._stale = trio.open_memory_channel[int](_QUEUE)

    def outsider(self, proc: ProcId) -> None:
        """A process was taken for an outsider: its first environment may know better."""
        try:
            self._outsiders_in.send_nowait(proc)
        except trio.WouldBlock:
            pass  # The third piece of evidence is the weakest: ancestry and cgroup have spoken.

    def drop_pages(self, number: int) -> None:
        """The kernel must forget a node's pages, once the request at hand has been answered."""
        try:
            self._stale_in.send_nowait(number)
        except trio.WouldBlock:
            pass  # A storm of refused stores: each next open drops the pages anyway.

    def start(
        self,
        nursery: trio.Nursery,
        prove: Callable[[ProcId], Awaitable[None]],
        reap: Callable[[], None],
        surplus: Callable[[], list[tuple[int, bytes]]],
    ) -> None:
        """Run all tasks until the nursery is cancelled; the functions are the guard's and the inode table's."""
        nursery.start_soon(self._keep_store)
        nursery.start_soon(self._prove, prove)
        nursery.start_soon(self._invalidate)
        nursery.start_soon(self._reap, reap)
        nursery.start_soon(self._shed, surplus)

    async def find_programs(self, rulebook: Rulebook) -> None:
        """Keep up with where git and its like are: the settings change, and so do packages."""
        while True:
            with trio.move_on_after(_REAP_S):
                await rulebook.programs_changed.wait()
            rulebook.programs_changed = trio.Event()
            # Abandoned at the end: a PATH that leads into the mount must not hold up its own unmounting.
            rulebook.programs = await trio.to_thread.run_sync(rulebook.find, abandon_on_cancel=True)

    async def last_flush(self) -> None:
        """Write what is left before the store is closed."""
        try:
            await self._store.flush()
        except StoreError as error:
            self._log.warning("store", reason=str(error), next="the records of this run are lost: files are read again")

    async def _keep_store(self) -> None:
        """Write what gathers; a store that fails costs memory of this run and nothing else."""
        while True:
            await self._store.dirty.wait()
            with trio.move_on_after(_FLUSH_S):
                await self._store.urgent.wait()
            try:
                await self._store.flush()
            except StoreError as error:
                self._log.warning("store", reason=str(error), next="free space or rights; records stay in memory")
                await trio.sleep(_RETRY_S)

    async def _prove(self, prove: Callable[[ProcId], Awaitable[None]]) -> None:
        async for proc in self._outsiders:
            await self._attempt("prove", prove, proc)

    async def _invalidate(self) -> None:
        async for number in self._stale:
            await self._attempt("invalidate", self._forget_pages, number)

    async def _forget_pages(self, number: int) -> None:
        """In a thread: the kernel may wait for requests that this loop has to answer."""
        try:
            await trio.to_thread.run_sync(pyfuse3.invalidate_inode, number)
        except OSError:
            pass  # The kernel has forgotten the inode meanwhile, and its pages with it.

    async def _shed(self, surplus: Callable[[], list[tuple[int, bytes]]]) -> None:
        """Ask the kernel to forget names, in a thread: it may wait for requests that this loop has to answer."""

        async def once() -> None:
            names = surplus()
            if names:
                await trio.to_thread.run_sync(_forget_names, names, abandon_on_cancel=True)

        while True:
            await trio.sleep(_SHED_S)
            await self._attempt("shed", once)

    async def _reap(self, reap: Callable[[], None]) -> None:
        async def once() -> None:
            reap()

        while True:
            await trio.sleep(_REAP_S)
            await self._attempt("reap", once)

    async def _attempt(self, name: str, step: Callable[..., Awaitable[None]], *args: object) -> None:
        try:
            await step(*args)
        except Exception as error:
            # A bug beside the requests: what it would have done is missed, and every verdict stands without it.
            self._log.error("exception", operation=name, **where(error))


def _forget_names(names: list[tuple[int, bytes]]) -> None:
    for parent, name in names:
        try:
            pyfuse3.invalidate_entry(parent, name)
        except OSError:
            continue  # The kernel has forgotten it already.
