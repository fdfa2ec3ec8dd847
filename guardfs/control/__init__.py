"""The control socket: beside the data path, never inside it."""
