"""Keeps the store's map out of the daemon's resident memory. Used by ``store``."""

import ctypes
import os
from pathlib import Path

_MADV_DONTNEED = 4
_libc = ctypes.CDLL(None, use_errno=True)


def give_back(path: Path) -> None:
    """Unmap a mapped file's pages until they are touched again: they stay in the page cache, which is the kernel's.

    For a shared map of a file that loses nothing (madvise(2), MADV_DONTNEED).
    """
    for start, end in _maps_of(path):
        _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED)


def _maps_of(path: Path) -> list[tuple[int, int]]:
    """Address ranges that map a file, by inode and device (proc_pid_maps(5)): its name may have odd characters."""
    st = path.stat()
    wanted = [f"{os.major(st.st_dev):02x}:{os.minor(st.st_dev):02x}", str(st.st_ino)]
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text(errors="replace").splitlines()]
    ranges = [line[0].split("-") for line in lines if line[3:5] == wanted]
    return [(int(start, 16), int(end, 16)) for start, end in ranges]
