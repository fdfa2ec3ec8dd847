"""The only rooms that know git, and the only ones that import dulwich."""

from guardfs.vcs.workspace import Vcs, blob_id

__all__ = ["Vcs", "blob_id"]
