"""The only rooms that read /proc, pidfds and cgroups."""
