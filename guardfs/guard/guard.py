"""The guard as one object: what ``fuse_ops`` calls and what the daemon builds."""

from guardfs.guard.files import FileGuard
from guardfs.guard.judge import Desk, Judge
from guardfs.guard.names import NameGuard
from guardfs.guard.notes import Notes


class Guard:
    """Two families of operations at one desk."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        judge = Judge(desk)
        notes = Notes(desk, judge)
        self.files = FileGuard(desk, judge, notes)
        self.names = NameGuard(desk, judge, notes)
