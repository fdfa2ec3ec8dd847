"""Which part of the rule applies at a path. Paths are bytes relative to the mount, without a leading slash."""

from guardfs.core.policy import Tier

POLICY_FILE = b".guardfs.toml"
"""At the workspace's root: what a session may do, so no session may change it."""


def tier_of(path: bytes, exempt: tuple[bytes, ...]) -> Tier:
    """The tier of a path; ``exempt`` holds names of directories whose content is exempt at any depth."""
    if path == POLICY_FILE:
        return Tier.POLICY
    directories = path.split(b"/")[:-1]
    return Tier.EXEMPT if any(name in exempt for name in directories) else Tier.GUARDED
