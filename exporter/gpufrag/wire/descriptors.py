"""Sockets inside someone else's program: it may close their descriptors (os.closerange) and use the numbers again."""

from __future__ import annotations

import os
import socket


def inode_of(own: socket.socket) -> int:
    """Raises OSError if the descriptor is closed."""
    return os.fstat(own.fileno()).st_ino


def is_open(own: socket.socket, inode: int) -> bool:
    """Return whether the descriptor still is this socket, whose inode was `inode`."""
    try:
        return inode_of(own) == inode
    except OSError:
        return False


def close(own: socket.socket, inode: int) -> None:
    """Close the socket, but not a file of the program that has its number now."""
    own.close() if is_open(own, inode) else own.detach()
