"""A long-lived bash that a test speaks to, as an agent or a person has one."""

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 60


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str

    @property
    def refused(self) -> bool:
        """Whether a program failed and said EIO in its own words."""
        return self.status != 0 and any(
            word in self.err + self.out for word in ("Input/output error", "EIO", "Errno 5", "disk I/O error")
        )


class Shell:
    """Runs one command line after another in the same process."""

    def __init__(self, cwd: Path, scratch: Path, env: dict[str, str] | None = None) -> None:
        self._out, self._err = scratch / f"out-{id(self)}", scratch / f"err-{id(self)}"
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._bash.pid

    def run(self, line: str) -> Outcome:
        """Run a command line to its end, in the shell itself."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        # The redirection of a failed `exec` ends a shell: hence the group, and its status on a pipe of its own.
        text = f"{{ {line}\n}} >{self._out} 2>{self._err} </dev/null; echo $?\n"
        self._bash.stdin.write(text.encode())
        self._bash.stdin.flush()
        status = self._bash.stdout.readline()
        assert status, f"the shell has ended at: {line}"
        out, err = self._out.read_text(errors="replace"), self._err.read_text(errors="replace")
        return Outcome(int(status), out, err)

    def close(self) -> None:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.close()
        try:
            self._bash.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._bash.pid, signal.SIGKILL)
            self._bash.wait()
        self._bash.stdout.close()
