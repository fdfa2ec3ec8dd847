"""What survives a restart: the layout in ``schema``, LMDB in ``store``."""
