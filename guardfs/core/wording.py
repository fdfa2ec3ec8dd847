"""Names, times and differences as people read them; pure. Used by the log and by the command line."""

from datetime import UTC, datetime

from guardfs.core.model import Author, Fingerprint

_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def escape(name: bytes) -> str:
    r"""A name on one line, whatever it holds, and unambiguous: a backslash is doubled, the rest is \\xNN.

    Valid UTF-8 stays readable; control characters and invalid bytes are escaped.
    """
    text = name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return _SHORT.get(character) or "".join(f"\\x{byte:02x}" for byte in character.encode())


def when(ns: int) -> str:
    """A time in ns since the epoch, in UTC, to the microsecond."""
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def stamp_difference(then: Fingerprint, now: Fingerprint) -> str:
    """What differs between two states, then and now."""
    a, b = then.stamp, now.stamp
    parts = []
    if a.size != b.size:
        parts.append(f"size {a.size} -> {b.size}")
    if a.mtime_ns != b.mtime_ns:
        parts.append(f"mtime {when(a.mtime_ns)} -> {when(b.mtime_ns)}")
    if a.file != b.file:
        parts.append(f"inode {a.file.ino} -> {b.file.ino}")
    if then.digest and now.digest and then.digest != now.digest:
        parts.append(f"sha256 {then.digest.hex()[:12]} -> {now.digest.hex()[:12]}")
    if not parts and a.ctime_ns != b.ctime_ns:
        parts.append(f"ctime {when(a.ctime_ns)} -> {when(b.ctime_ns)}")
    return ", ".join(parts) or "nothing that stat shows"


def changed_by(author: Author | None) -> str:
    """Who changed a file last, as far as guardfs saw it."""
    if author is None:
        return "outside the mount, or before this daemon began"
    return f"{author.program} (pid {author.pid}, {author.session or 'untracked'}) at {when(author.when_ns)}"
