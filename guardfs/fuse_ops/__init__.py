"""The kernel's requests: unpacked, handed to the guard in one call, and the answer packed."""

from guardfs.fuse_ops.operations import Operations

__all__ = ["Operations"]
