"""Settings: defaults, ``.guardfs.toml`` at the workspace's root, then flags; and where guardfs keeps its state."""

from guardfs.config.places import state_dir, state_root
from guardfs.config.reading import Signature, Values, from_text, load, signature
from guardfs.config.settings import Errno, Settings

__all__ = ["Errno", "Settings", "Signature", "Values", "from_text", "load", "signature", "state_dir", "state_root"]
