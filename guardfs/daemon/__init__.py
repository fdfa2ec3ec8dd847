"""The composition root: build, start, wait, stop in reverse."""
