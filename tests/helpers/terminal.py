"""A pseudo-terminal, by default with an interactive bash in it: keys go in, what a person would see comes out."""

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path

from tests.helpers.shell import DEADLINE_S

PROMPT = "ready> "
BASH = ("bash", "--norc", "--noprofile", "--noediting", "-i")


class Terminal:
    """Everything that was shown is in ``shown``; ``expect`` looks only at what came since the last match."""

    def __init__(self, cwd: Path, command: Sequence[str] = BASH) -> None:
        self._master, slave = os.openpty()
        self.shown = ""
        self._seen = 0
        environment = {**os.environ, "PS1": PROMPT, "LC_ALL": "C.UTF-8", "HISTFILE": "", "TERM": "dumb"}
        self.leader = subprocess.Popen(
            ["setsid", "--ctty", *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cwd,
            env=environment,
        )
        os.close(slave)
        if command is BASH:
            self.expect(PROMPT)

    def keys(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, pattern: str) -> "re.Match[str]":
        """Wait until a pattern is shown."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := re.compile(pattern).search(self.shown, self._seen)):
            left = deadline - time.monotonic()
            assert left > 0, f"{pattern!r} never came after: {self.shown[-2000:]!r}"
            if select.select([self._master], [], [], min(left, 1))[0]:
                self.shown += os.read(self._master, 65536).decode(errors="replace").replace("\r\n", "\n")
        self._seen = found.end()
        return found

    def run(self, line: str) -> str:
        """Run a line in the outer shell; what it has shown until the next prompt."""
        self.keys(line + "\n")
        self.expect(re.escape(line) + "\n")
        return self.expect(f"(?s)(.*?){PROMPT}")[1]

    def status(self) -> int:
        return int(self.run("echo $?"))

    def resize(self, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, 80, 0, 0))

    def hang_up(self) -> None:
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        if self._master >= 0:
            self.hang_up()
        self.leader.wait(DEADLINE_S)
