"""A daemon started by another guardfs process: its plan comes in on stdin, one line of answer goes out on stdout."""

import os
import sys

from guardfs.control.protocol import Begun, Plan, pack, unpack
from guardfs.daemon.service import serve
from guardfs.errors import GuardfsError


def main() -> None:
    """Serve the plan; exits 0 also after a failure that the starter has been told of."""
    plan = unpack(sys.stdin.buffer.read(), Plan)
    try:
        serve(plan, lambda begun: _answer(begun, plan))
    except GuardfsError as error:
        _write(Begun(str(error), error.code))


def _answer(begun: Begun, plan: Plan) -> None:
    _write(begun)
    # The starter goes away: what a library still prints belongs beside the log.
    null = os.open(os.devnull, os.O_RDWR)
    complaints = os.open(plan.state / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(complaints, 2)
    os.close(null)
    os.close(complaints)


def _write(begun: Begun) -> None:
    sys.stdout.buffer.write(pack(begun))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
