"""A view of one config that remembers which of its keys were read: the rest is ignored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Keys:
    """Reads keys of a config section; readers of the same config share one memory.

    Args:
        config: The section.
        prefix: Dotted path of the section within config.json, ending in a dot; empty at the top.
        seen: Memory shared between sections of one file.
    """

    def __init__(
        self, config: Mapping[str, Any], prefix: str = "", seen: set[str] | None = None
    ) -> None:
        self.config = config
        self.prefix = prefix
        self.seen: set[str] = set() if seen is None else seen

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of ``name`` (a null stays None) and remember that it was read."""
        self.seen.add(self.prefix + name)
        return self.config.get(name, default)

    def has(self, name: str) -> bool:
        """Return whether ``name`` is present, null included, and remember that it was read."""
        self.seen.add(self.prefix + name)
        return name in self.config

    def section(self, name: str) -> Keys:
        """Return the section ``name``, empty where it is absent or not an object."""
        value = self.config.get(name)
        inner = value if isinstance(value, Mapping) else {}
        return Keys(inner, f"{self.prefix}{name}.", self.seen)

    def forget(self, name: str) -> None:
        """Take ``name`` back: a stronger key decided, so the engine's answer ignores it."""
        self.seen.discard(self.prefix + name)

    def unread(self) -> tuple[str, ...]:
        """Return the sorted dotted keys nobody read; a section of which nothing was, as one."""
        return tuple(sorted(self._unread(self.config, self.prefix)))

    def _unread(self, section: Mapping[str, Any], prefix: str) -> Iterator[str]:
        for name, value in section.items():
            path = prefix + name
            if path in self.seen:
                continue
            if isinstance(value, Mapping) and any(key.startswith(f"{path}.") for key in self.seen):
                yield from self._unread(value, f"{path}.")
            else:
                yield path
