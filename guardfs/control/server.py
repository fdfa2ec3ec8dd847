"""The answering side of the control socket. Who may connect: the daemon's user and root.

Must not be reached from a request's handler; it shares the event loop with them and nothing else.
"""

import os
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import trio

from guardfs.control.protocol import LINE_LIMIT, Answer, Request
from guardfs.errors import ExitCode, GuardfsError, where

Responder = Callable[[Request, int], Awaitable[Answer]]
_BACKLOG = 16


def listen(state: Path) -> socket.socket:
    """Bind the control socket, by a path that is always short enough (unix(7)); readable by its owner alone."""
    (state / "control.sock").unlink(missing_ok=True)
    fd = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.bind(f"/proc/self/fd/{fd}/control.sock")
    finally:
        os.close(fd)
    (state / "control.sock").chmod(0o600)
    line.listen(_BACKLOG)
    return line


class Server:
    """Serves one question per connection."""

    def __init__(self, respond: Responder, log: Any) -> None:
        """``respond`` is given the asking process's id too, since not everybody may ask for everything."""
        self._respond = respond
        self._log = log

    async def serve(self, line: socket.socket) -> None:
        """Answer until cancelled."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(line))
        await trio.serve_listeners(self._converse, [listener])

    async def _converse(self, stream: trio.SocketStream) -> None:
        async with stream:
            try:
                answer = await self._answer(stream)
                await stream.send_all(msgspec.json.encode(answer) + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass  # The asker has gone; there is nobody to tell.

    async def _answer(self, stream: trio.SocketStream) -> Answer:
        try:
            request = msgspec.json.decode(await _line(stream), type=Request)
            return await self._respond(request, _peer(stream))
        except GuardfsError as error:
            return Answer(error=str(error), code=error.code)
        except msgspec.DecodeError as error:
            return Answer(error=f"not understood: {error}", code=ExitCode.USAGE)
        except trio.BrokenResourceError:
            raise
        except Exception as error:
            # A bug in an answer must not end the mount.
            self._log.error("exception", operation="control", **where(error))
            return Answer(error=f"the daemon failed to answer: {error}", code=ExitCode.SOFTWARE)


def _peer(stream: trio.SocketStream) -> int:
    """The process that connected, by SO_PEERCRED (unix(7)). Raises GuardfsError for another user's."""
    raw = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    if uid not in (0, os.geteuid()):
        raise GuardfsError("not permitted: another user's mount", ExitCode.NO_PERMISSION)
    return int(pid)


async def _line(stream: trio.SocketStream) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < LINE_LIMIT:
        part = await stream.receive_some()
        if not part:
            break
        line += part
    return bytes(line)
