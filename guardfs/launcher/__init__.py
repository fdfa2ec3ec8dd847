"""``guardfs run``: mount, register, start the tree, forward signals, wait, sum up."""

from guardfs.launcher.run import run

__all__ = ["run"]
