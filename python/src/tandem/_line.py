"""JSON lines over a unix socket that never wait and never fail."""

import json
import socket
import time

#: The longest line that is read.
LINE_MAX = 64 * 1024
RECONNECT_S = 2.0
#: How long the last line may take to leave.
FAREWELL_S = 0.5
#: How long to sleep between two looks at the socket.
LOOK_S = 0.005
#: A daemon that is gone is an error of `send`, whatever the script does about signals.
NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


class Line:
    """The line to the daemon, or to nobody for the moment."""

    def __init__(self, path, hello):
        """``hello`` returns what to say first on every connection."""
        self._path = path
        self._hello = hello
        self._socket = None
        self._try_again = 0.0
        self._forget()
        self._connect()

    @property
    def is_open(self):
        return self._socket is not None

    def send(self, message):
        """Sends a line; False if it was dropped because the last one is still on its way.

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

    def receive(self):
        """The objects that have arrived; lines that are none are left out."""
        self._connect()
        self._flush()
        heard = []
        # A daemon that talks without end must not keep the job from its work.
        for _ in range(32):
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

    def farewell(self, message):
        """Sends the last line and gives it a moment to leave."""
        self._connect(now=True)
        self._flush()
        if self._socket is not None:
            self._push(message)
        end = time.monotonic() + FAREWELL_S
        while self._flush() and time.monotonic() < end:
            time.sleep(LOOK_S)
        self.close()
        self._try_again = float("inf")

    def close(self):
        if self._socket is not None:
            try:
                self._socket.close()
            except OSError:
                pass
            self._socket = None
        self._forget()
        self._try_again = time.monotonic() + RECONNECT_S

    def _forget(self):
        # The rest of a line that the socket did not take, the beginning of one that is to come, and
        # whether what comes up to the end of the line belongs to one that is too long.
        self._unsent = b""
        self._unread = b""
        self._too_long = False

    def _connect(self, now=False):
        if self._socket is not None or (time.monotonic() < self._try_again and not now):
            return
        self._try_again = time.monotonic() + RECONNECT_S
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            self._socket.connect(self._path)
        except (OSError, ValueError):
            self.close()
            return
        self._push(self._hello())
        self._flush()

    def _push(self, message):
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"

    def _flush(self):
        """Sends what the socket takes. True if something is left."""
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

    def _take(self, data, heard):
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

    def _add(self, text):
        if self._too_long or len(self._unread) + len(text) > LINE_MAX:
            self._too_long = True
            self._unread = b""
        else:
            self._unread += text
