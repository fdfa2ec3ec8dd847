"""The transactions of the guard: resolve, lock, look again, decide, act, remember, announce.

``files`` and ``names`` hold the two families of operations; ``judge`` looks, decides and refuses for both, ``notes``
keeps what follows from an act, ``sessions`` what each session knows, ``registry`` how sessions begin and end, and
``announcer`` what is said. Plain stretches between two awaits are atomic: every act follows the
last look without an ``await`` between them.
"""

from guardfs.guard.guard import Guard

__all__ = ["Guard"]
