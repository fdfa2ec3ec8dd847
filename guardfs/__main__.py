"""Lets ``python -m guardfs`` stand for the installed command; the launcher starts daemons this way."""

from guardfs.cli import main

if __name__ == "__main__":
    main()
