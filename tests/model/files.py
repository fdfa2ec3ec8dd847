"""As much of a file system in memory as the model needs: names, bytes, hard links, one level of directories."""

from dataclasses import dataclass

JUST_NOW = -1


@dataclass
class State:
    """What is compared: ctime only asks for a hash, and a model knows the bytes. The world gives the time of writes."""

    data: bytes
    mtime: int = JUST_NOW


@dataclass(eq=False)
class Inode:
    state: State
    mode: int = 0o644
    was_linked: bool = False


class Failed(Exception):
    """Carries an errno, and for a refusal each (path, reason) that may be told."""


class Files:
    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.dirs: set[str] = set()

    # Steps that are never judged, whoever takes them.

    def chmod(self, _: object, path: str, mode: int) -> None:
        self._need(path).mode = mode

    def mkdir(self, _: object, path: str) -> None:
        fail_if("EEXIST", path in self.dirs)
        self.dirs.add(path)

    def rmdir(self, _: object, path: str) -> None:
        fail_if("ENOENT", path not in self.dirs)
        fail_if("ENOTEMPTY", self._below(path))
        self.dirs.remove(path)

    def _look(self, path: str) -> Inode | None:
        fail_if("ENOENT", "/" in path and path.partition("/")[0] not in self.dirs)
        return self.files.get(path)

    def _need(self, path: str) -> Inode:
        if not (inode := self._look(path)):
            raise Failed("ENOENT")
        return inode

    def _below(self, path: str) -> bool:
        return any(name.startswith(path + "/") for name in self.files)


def fail_if(errno: str, condition: object) -> None:
    if condition:
        raise Failed(errno)
