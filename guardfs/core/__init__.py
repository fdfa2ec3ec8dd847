"""Pure decisions over plain data: no I/O, no clock, no trio, no logging."""
