"""How requests are taken from the kernel: pyfuse3's stock loop.

Must not know what a request asks for. Used by the daemon.
"""

import pyfuse3

_IDLE_WORKERS = 1
_WORKERS = 64
"""Requests in flight; each that waits in a worker thread or for a file's lock takes one."""


async def serve() -> None:
    """Answer requests until the mount is gone; a handler's exceptions never reach this."""
    await pyfuse3.main(min_tasks=_IDLE_WORKERS, max_tasks=_WORKERS)
