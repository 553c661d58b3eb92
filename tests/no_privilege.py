"""The rights of a file's owner hold for root too, as they do for every other user."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

# linux/capability.h: version 3 takes two sets of 32 capabilities each.
_VERSION = 0x20080522
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1 << 1, 1 << 2


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Set(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def _call(name: str, sets: ctypes.Array[_Set]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(ctypes.byref(_Header(_VERSION, 0)), sets):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def without_override() -> Iterator[None]:
    """Take this thread the power to pass over the rights of files, for the length of the block."""
    sets = (_Set * 2)()
    _call("capget", sets)
    before = sets[0].effective
    sets[0].effective = before & ~(_DAC_OVERRIDE | _DAC_READ_SEARCH)
    _call("capset", sets)
    try:
        yield
    finally:
        sets[0].effective = before
        _call("capset", sets)
