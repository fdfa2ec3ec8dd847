"""One of several processes that change the same few files as fast as they can, and tell of each act what they know.

Started as a program of its own, so that it can be tracked: ``hammer.py NAME FILES ROUNDS`` in the mount.
A file's content is a list of tokens, one a line; a token is written once. Writes a JSON list
of its acts. Imports nothing of the project.
"""

import ctypes
import json
import os
import random
import sys
import time

RENAME_EXCHANGE = 2
AT_FDCWD = -100

libc = ctypes.CDLL(None, use_errno=True)
me, files, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(me)
acts: list[dict[str, object]] = []


def act(kind: str, file: str, began: int, tokens: list[str]) -> None:
    acts.append({"kind": kind, "file": file, "began": began, "ended": time.monotonic_ns(), "tokens": tokens})


def read(file: str, path: str) -> None:
    began = time.monotonic_ns()
    with open(path) as text:
        act("saw", file, began, text.read().split())


def written(file: str, path: str, token: str, flags: int) -> None:
    began = time.monotonic_ns()
    fd = os.open(path, os.O_WRONLY | flags, 0o666)
    try:
        if flags & os.O_TRUNC:
            act("cut", file, began, [])
        os.write(fd, f"{token}\n".encode())
    finally:
        os.close(fd)
    act("wrote", file, began, [token])


def exchanged(file: str, token: str) -> None:
    """Put a new version in the place of the present one, and look at what came out."""
    draft = f"draft-{me}"
    written(file, draft, token, os.O_CREAT | os.O_TRUNC)
    began = time.monotonic_ns()
    if libc.renameat2(AT_FDCWD, draft.encode(), AT_FDCWD, file.encode(), RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), file)
    ended = time.monotonic_ns()
    with open(draft) as text:
        acts.append({"kind": "took", "file": file, "began": began, "ended": ended, "tokens": text.read().split()})


def main() -> None:
    for count in range(rounds):
        file, token = f"h{chance.randrange(files)}", f"{me}.{count}"
        try:
            if chance.random() < 0.7:
                read(file, file)
            road = chance.randrange(3)
            if road == 0:
                exchanged(file, token)
            else:
                written(file, file, token, os.O_TRUNC if road == 1 else os.O_APPEND)
        except OSError as error:
            acts.append(
                {"kind": os.strerror(error.errno or 0), "file": file, "began": 0, "ended": 0, "tokens": [token]}
            )
    json.dump(acts, sys.stdout)


if __name__ == "__main__":
    main()
