"""cgroups v2 as evidence of membership: children cannot leave theirs by forking (cgroups(7)).

Used by the census, which asks, and by the daemon, which makes one per session where that is permitted.
"""

from pathlib import Path


def cgroup_of(pid: int) -> str | None:
    """The cgroup v2 path of a process, relative to the hierarchy's root (cgroups(7))."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None  # The process is gone, or hidden from us: no evidence.
    return next((line[3:] for line in lines if line.startswith("0::")), None)


def cgroup_mount() -> str | None:
    """Where the cgroup v2 hierarchy is mounted, or None."""
    for line in Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines():
        fields = line.split(" ")
        if fields[2] == "cgroup2":
            return fields[1]
    return None


def procs_file(path: str | None) -> str:
    """The file through which a process joins a cgroup by writing its id; empty for no cgroup."""
    return f"{cgroup_mount()}{path}/cgroup.procs" if path else ""


class Cgroup:
    """A cgroup v2 of one session, below the one that its root was in; made where that is permitted."""

    def __init__(self, directory: Path, path: str) -> None:
        self.directory = directory
        self.path = path

    @classmethod
    def make(cls, name: str, beside: int) -> "Cgroup | None":
        """A new cgroup below that of process ``beside``; None where none can be made."""
        mount, current = cgroup_mount(), cgroup_of(beside)
        if mount is None or current is None:
            return None
        path = f"{current.rstrip('/')}/{name}"
        directory = Path(mount + path)
        try:
            directory.mkdir()
        except OSError:
            return None  # No delegation here: ancestry alone decides.
        return cls(directory, path)

    @classmethod
    def existing(cls, path: str) -> "Cgroup | None":
        """The cgroup that an earlier daemon made, if it is still there."""
        mount = cgroup_mount()
        directory = Path((mount or "") + path)
        return cls(directory, path) if mount and directory.is_dir() else None

    def add(self, pid: int) -> None:
        """Move a process in; one that is gone or not ours to move stays known by ancestry."""
        try:
            (self.directory / "cgroup.procs").write_text(str(pid))
        except OSError:
            pass  # Ancestry knows it already.

    def holds(self, path: str) -> bool:
        """Whether a cgroup path is this one or below it."""
        return path == self.path or path.startswith(self.path + "/")

    def is_populated(self) -> bool:
        """Whether any process is in it or below it."""
        try:
            return "populated 1" in (self.directory / "cgroup.events").read_text()
        except FileNotFoundError:
            return False
        except OSError:
            return True  # A session whose tree cannot be looked at goes on.

    def remove(self) -> bool:
        """Remove the cgroup; False for one that still holds processes, the just ended ones among them."""
        try:
            self.directory.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True
