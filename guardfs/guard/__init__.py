"""The transactions of the guard: resolve, lock, look again, decide, act, remember, announce.

``files`` and ``names`` hold the two families of operations, ``judge`` what they share, ``sessions`` what each
session knows, ``announcer`` what is said. Plain stretches between two awaits are atomic: every act follows the
last look without an ``await`` between them.
"""

from guardfs.guard.guard import Guard

__all__ = ["Guard"]
