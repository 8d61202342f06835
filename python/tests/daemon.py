"""The other end of a job's socket, played by a test."""

import json
import os
import socket
import tempfile
import time
import unittest

PATIENCE_S = 120


class Talk:
    """One connection."""

    def __init__(self, connection):
        connection.settimeout(PATIENCE_S)
        self.connection = connection
        self._lines = connection.makefile("rb")

    def hear(self):
        line = self._lines.readline()
        assert line.endswith(b"\n"), f"not a whole line: {line!r}"
        return json.loads(line)

    def hear_all(self):
        """Everything until the job hangs up; every line is whole."""
        heard = []
        for line in self._lines:
            assert line.endswith(b"\n"), f"not a whole line: {line!r}"
            heard.append(json.loads(line))
        return heard

    def say(self, message):
        self.send(json.dumps(message).encode() + b"\n")

    def send(self, data):
        self.connection.sendall(data)

    def close(self):
        self._lines.close()
        self.connection.close()


class Daemon:
    def __init__(self, path):
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.settimeout(PATIENCE_S)
        self._listener.bind(path)
        self._listener.listen(1)

    def accept(self):
        connection, _ = self._listener.accept()
        return Talk(connection)

    def vanish(self):
        self._listener.close()
        os.unlink(self._path)


class WithSocket(unittest.TestCase):
    """Gives every test a place for a socket, named in the environment as a job finds it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "job.sock")
        before = dict(os.environ)

        def restore():
            os.environ.clear()
            os.environ.update(before)

        self.addCleanup(restore)
        os.environ.pop("TANDEM_ACCUM", None)
        os.environ["TANDEM_SOCK"] = self.path
        os.environ["TANDEM_JOB_ID"] = "17"

    def daemon(self):
        daemon = Daemon(self.path)
        self.addCleanup(daemon._listener.close)
        return daemon


def until(condition):
    """Waits until something is so."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.002)
