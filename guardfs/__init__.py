"""guardfs: a file system that keeps a coding agent from destroying work it has not seen."""

__version__ = "0.1.0"
