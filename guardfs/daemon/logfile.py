"""The log: one logfmt line each, appended to a file outside the mount. structlog does the work."""

import logging
from pathlib import Path
from typing import IO, Any

import structlog


def open_log(path: Path) -> tuple[Any, IO[str]]:
    """A logger and its file, line-buffered so that a killed daemon has said what it knew."""
    file = path.open("a", buffering=1, encoding="utf-8", errors="backslashreplace")
    logger = structlog.wrap_logger(
        structlog.WriteLogger(file),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.LogfmtRenderer(key_order=["time", "level", "event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    return logger, file


class LibraryHandler(logging.Handler):
    """What libraries say through ``logging`` goes into the same log."""

    def __init__(self, log: Any) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; never raises."""
        try:
            self._log.log(record.levelno, "library", logger=record.name, message=record.getMessage())
        except Exception:
            self.handleError(record)
