"""Does one file operation for each line of standard input and answers with one line: an errno or bytes.

Started as a program of its own, so that it is a process that can be tracked. Imports nothing of the project.
"""

import base64
import ctypes
import errno
import json
import os
import sys
from collections.abc import Callable

ACCESS = {"r": os.O_RDONLY, "w": os.O_WRONLY, "r w": os.O_RDWR}
FLAGS = {"creat": os.O_CREAT, "excl": os.O_EXCL, "trunc": os.O_TRUNC, "append": os.O_APPEND}
RENAME = {"": 0, "noreplace": 1, "exchange": 2}
AT_FDCWD = -100

libc = ctypes.CDLL(None, use_errno=True)
handles: dict[str, int] = {}
"""By name; one that could not be opened is a bad descriptor."""


def opened(path: str, mode: str) -> int:
    words = mode.split()
    flags = ACCESS[" ".join(word for word in words if word in ACCESS)]
    for word in words:
        flags |= FLAGS.get(word, 0)
    return os.open(path, flags, 0o666)


def read(path: str) -> bytes:
    fd = opened(path, "r")
    try:
        return os.pread(fd, 1 << 16, 0)
    finally:
        os.close(fd)


def write(path: str, data: bytes, mode: str) -> None:
    fd = opened(path, mode)
    try:
        if data:
            os.pwrite(fd, data, 0)
    finally:
        os.close(fd)


def hopen(name: str, path: str, mode: str) -> None:
    handles[name] = opened(path, mode)


def hread(name: str) -> bytes:
    return os.pread(handles[name], 1 << 16, 0)


def hwrite(name: str, data: bytes) -> None:
    os.pwrite(handles.get(name, -1), data, 0)  # Appends where the descriptor does.


def hcut(name: str, size: int) -> None:
    os.ftruncate(handles.get(name, -1), size)


def close(name: str) -> None:
    os.close(handles.pop(name, -1))


def rename(old: str, new: str, flag: str) -> None:
    if libc.renameat2(AT_FDCWD, old.encode(), AT_FDCWD, new.encode(), RENAME[flag]):
        raise OSError(ctypes.get_errno(), old)


def touch(path: str, mtime: int) -> None:
    os.utime(path, ns=(mtime, mtime))


STEPS: dict[str, Callable[..., bytes | None]] = {
    "read": read,
    "write": write,
    "open": hopen,
    "hread": hread,
    "hwrite": hwrite,
    "hcut": hcut,
    "close": close,
    "truncate": os.truncate,
    "unlink": os.unlink,
    "rename": rename,
    "link": os.link,
    "chmod": os.chmod,
    "touch": touch,
    "mkdir": os.mkdir,
    "rmdir": os.rmdir,
}


def serve() -> None:
    os.umask(0o022)
    for line in sys.stdin:
        step, *args = json.loads(line)
        decoded = [base64.b64decode(arg["bytes"]) if isinstance(arg, dict) else arg for arg in args]
        try:
            data = STEPS[step](*decoded)
        except OSError as error:
            answer = {"errno": errno.errorcode[error.errno or 0]}
        else:
            answer = {} if data is None else {"data": base64.b64encode(data).decode()}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
