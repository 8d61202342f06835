"""Whether a unix socket is the daemon's.

A socket in a folder that other users can write to may belong to any of them, and what is sent to it
(the environment of a job, for example) would be theirs. Nothing is sent unless three things hold:

- the folder belongs to this user or to root, and nobody else can put another socket in its place;
- the socket belongs to this user or to root;
- so does the process that listens, which the kernel knows (``SO_PEERCRED``).
"""

from __future__ import annotations

import os
import socket
import stat
import struct

#: ``struct ucred``: process, user, group.
_UCRED = struct.Struct("iII")
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class UntrustedError(Exception):
    """A socket that another user may have put there."""


def check_socket(path: str) -> None:
    """Raises `UntrustedError` if another user could listen at ``path``, if there is a socket."""
    folder = os.path.dirname(os.path.abspath(path))
    for place in (folder, path):
        try:
            # A link is as trustworthy as its owner and as what it leads to.
            found = [os.lstat(place), os.stat(place)]
        except OSError:
            # Connecting tells why.
            return
        for status in found:
            if not _is_trusted(status.st_uid):
                raise UntrustedError(f"{place} belongs to user {status.st_uid}, not to you or root")
        if place != folder:
            continue
        mode = found[1].st_mode
        # In a sticky folder nobody can replace the socket of another user.
        if mode & _WRITABLE_BY_OTHERS and not mode & stat.S_ISVTX:
            raise UntrustedError(f"other users can write to the folder {folder}")


def check_peer(connected: socket.socket) -> None:
    """Raises `UntrustedError` if the process at the other end is not this user's or root's."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return
    data = connected.getsockopt(socket.SOL_SOCKET, option, _UCRED.size)
    _, uid, _ = _UCRED.unpack(data)
    if not _is_trusted(uid):
        raise UntrustedError(f"the process that listens is user {uid}'s, not yours or root's")


def connect(path: str, timeout: float | None) -> socket.socket:
    """Connects to the daemon's socket; ``timeout`` 0 means that the socket never blocks."""
    check_socket(path)
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(timeout)
        connected.connect(path)
        check_peer(connected)
    except BaseException:
        connected.close()
        raise
    return connected


def _is_trusted(uid: int) -> bool:
    return uid in (os.geteuid(), 0)
