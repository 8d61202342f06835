"""JSON lines over a unix socket that never wait and never fail."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

from tandem import _trust

#: The longest line that is read.
LINE_MAX = 64 * 1024
RECONNECT_S = 2.0
#: How long the last line may take to be sent.
FAREWELL_S = 0.5
#: How long to sleep before the socket is tried again.
POLL_S = 0.005
#: Reads before the job continues: a daemon that sends without end must not keep it from its work.
READS_MAX = 32
#: A daemon that is gone is an error of `send`, whatever the script does about signals.
NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)

LOG = logging.getLogger("tandem")


class Line:
    """The connection to the daemon, open or not."""

    def __init__(self, path: str, hello: Callable[[], dict[str, Any]]) -> None:
        """``hello`` returns the first message of every connection."""
        self._path = path
        self._hello = hello
        self._socket: socket.socket | None = None
        self._next_attempt = 0.0
        self._warned = False
        # What the socket has not taken yet, the beginning of a line whose end is still to come, and
        # whether that line is too long.
        self._unsent = b""
        self._unread = b""
        self._too_long = False
        self._connect()

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def send(self, message: dict[str, Any]) -> bool:
        """Sends a line; False if it was dropped because an earlier one is not sent yet.

        Without a daemon every line counts as sent.
        """
        self._connect()
        self._flush()
        if self._socket is None:
            return True
        if self._unsent:
            return False
        self._push(message)
        self._flush()
        return True

    def receive(self) -> list[dict[str, Any]]:
        """The objects that have arrived; bad lines are skipped."""
        self._connect()
        self._flush()
        heard: list[dict[str, Any]] = []
        for _ in range(READS_MAX):
            if self._socket is None:
                break
            try:
                data = self._socket.recv(4096)
            except InterruptedError:
                continue
            except BlockingIOError:
                break
            except OSError:
                self.close()
                break
            if not data:
                self.close()
                break
            self._take(data, heard)
        return heard

    def farewell(self, message: dict[str, Any]) -> None:
        """Sends the last line, within `FAREWELL_S`, and connects no more."""
        self._connect(now=True)
        self._flush()
        if self._socket is not None:
            self._push(message)
        end = time.monotonic() + FAREWELL_S
        while self._flush() and time.monotonic() < end:
            time.sleep(POLL_S)
        self.close()
        self._next_attempt = float("inf")

    def close(self) -> None:
        if self._socket is not None:
            try:
                self._socket.close()
            except OSError:
                pass
            self._socket = None
        self._unsent = self._unread = b""
        self._too_long = False
        self._next_attempt = time.monotonic() + RECONNECT_S

    def _connect(self, now: bool = False) -> None:
        if self._socket is not None or (time.monotonic() < self._next_attempt and not now):
            return
        self._next_attempt = time.monotonic() + RECONNECT_S
        try:
            self._socket = _trust.connect(self._path, timeout=0)
        except _trust.UntrustedError as cause:
            if not self._warned:
                self._warned = True
                LOG.warning("tandem: %s is not used, nothing is reported: %s", self._path, cause)
            return
        except (OSError, ValueError):
            return
        self._push(self._hello())
        self._flush()

    def _push(self, message: dict[str, Any]) -> None:
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"

    def _flush(self) -> bool:
        """Sends what the socket takes. True if it did not take all."""
        while self._socket is not None and self._unsent:
            try:
                count = self._socket.send(self._unsent, NO_SIGNAL)
            except InterruptedError:
                continue
            except BlockingIOError:
                return True
            except OSError:
                self.close()
                return False
            self._unsent = self._unsent[count:]
        return False

    def _take(self, data: bytes, heard: list[dict[str, Any]]) -> None:
        *ends, rest = data.split(b"\n")
        for text in ends:
            self._add(text)
            line, self._unread = self._unread, b""
            too_long, self._too_long = self._too_long, False
            if not too_long:
                try:
                    said = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(said, dict):
                    heard.append(said)
        self._add(rest)

    def _add(self, text: bytes) -> None:
        if self._too_long or len(self._unread) + len(text) > LINE_MAX:
            self._too_long = True
            self._unread = b""
        else:
            self._unread += text
