"""The one boundary around every handler: whatever happens inside becomes an errno.

pyfuse3 ends its loop, and with it the mount, on any exception that is not a FUSEError.
"""

import errno
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import pyfuse3

from guardfs.errors import where
from guardfs.guard.judge import Refused

P = ParamSpec("P")
R = TypeVar("R")


class HasLog(Protocol):
    """What the boundary needs of the operations object."""

    log: Any


S = TypeVar("S", bound=HasLog)
Handler = Callable[Concatenate[S, P], Coroutine[Any, Any, R]]


def bounded(handler: Handler[S, P, R]) -> Handler[S, P, R]:
    """Answer a refusal and an OSError with their errno, and a bug with EIO and one line in the log."""

    @functools.wraps(handler)
    async def inside(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await handler(self, *args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except Refused as refusal:
            raise pyfuse3.FUSEError(refusal.errno) from None
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from None
        except Exception as error:
            # A bug: this caller gets EIO, which is closed for a tracked one, and the mount lives on.
            self.log.error("exception", operation=handler.__name__, **where(error))
            raise pyfuse3.FUSEError(errno.EIO) from None

    return inside


def silent(handler: Handler[S, P, None]) -> Handler[S, P, None]:
    """For handlers that have no reply to carry an errno (FUSE_FORGET): log and go on."""

    @functools.wraps(handler)
    async def inside(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            await handler(self, *args, **kwargs)
        except Exception as error:
            # At worst a node is kept longer than needed.
            self.log.error("exception", operation=handler.__name__, **where(error))

    return inside
