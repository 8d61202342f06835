"""Nothing is sent to a socket that another user may have put there."""

import asyncio
import json
import logging
import os
import re
import socket
import tempfile
import threading
import time
import unittest
from unittest import mock

import tandem
from tandem import _line, _trust

#: A user that nobody is.
STRANGER = 54321
SECRET = "the token of somebody"


class Squatter:
    """Listens, takes down what it is sent, and answers as a daemon would."""

    def __init__(self, path, as_user=None):
        self.received = b""
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        if as_user is None:
            self._listener.listen(8)
        else:
            # The kernel remembers who called listen.
            os.seteuid(as_user)
            try:
                self._listener.listen(8)
            finally:
                os.seteuid(0)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(0.3)
                try:
                    while data := connection.recv(65536):
                        self.received += data
                        if self._is_whole():
                            body = json.dumps({"ids": [1], "jobs": []}).encode()
                            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
                            connection.sendall(head.encode() + body)
                            break
                except OSError:
                    pass

    def _is_whole(self):
        head, end, body = self.received.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        return bool(end) and len(body) >= (int(length[1]) if length else 0)

    def close(self):
        # Closing alone does not wake a thread that accepts.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


class WithSquatter(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.path = os.path.join(folder.name, "daemon.sock")

    def squat(self, **options):
        squatter = Squatter(self.path, **options)
        self.addCleanup(squatter.close)
        return squatter

    def assert_refused(self, squatter, reason):
        """Neither client, nor a job, tells the squatter anything."""
        environment = {"TANDEM_SOCK": self.path, "SECRET": SECRET}
        with mock.patch.dict(os.environ, environment):
            with self.assertRaisesRegex(tandem.Untrusted, reason) as caught:
                tandem.Client(socket=self.path).submit(["true"])
            self.assertEqual(caught.exception.code, "untrusted")
            with self.assertRaisesRegex(tandem.Untrusted, reason):
                asyncio.run(tandem.AsyncClient(socket=self.path).submit(["true"]))
            with self.assertLogs("tandem", logging.WARNING) as logged:
                job = tandem.Job()
                self.assertTrue(job.step())
                job.bye()
            self.assertEqual(len(logged.records), 1, "once is enough")
            self.assertRegex(logged.output[0], reason)
        time.sleep(0.05)
        self.assertEqual(squatter.received, b"")

    def test_a_socket_of_ones_own_is_used(self):
        squatter = self.squat()
        self.assertEqual(tandem.Client(socket=self.path).submit(["true"], env={"A": SECRET}), 1)
        self.assertIn(SECRET.encode(), squatter.received)

    def test_folder_and_socket_of_another_user(self):
        squatter = self.squat()
        with mock.patch.object(os, "geteuid", return_value=STRANGER):
            if os.getuid() == 0:
                # Root is trusted by everybody, so the folder has to be a third user's.
                os.chown(self.folder, STRANGER + 1, -1)
            self.assert_refused(squatter, f"{self.folder} belongs to user")

    def test_folder_that_others_can_write_to(self):
        squatter = self.squat()
        for mode in (0o777, 0o770, 0o702):
            os.chmod(self.folder, mode)
            self.assert_refused(squatter, f"other users can write to the folder {self.folder}")
        # In a sticky folder the socket is safe from others.
        os.chmod(self.folder, 0o1777)
        self.assertEqual(tandem.Client(socket=self.path).queue(), [])

    def test_sticky_folder_with_a_socket_of_another_user(self):
        squatter = self.squat()
        os.chmod(self.folder, 0o1777)
        with mock.patch.object(os, "geteuid", return_value=STRANGER):
            if os.getuid() == 0:
                os.chown(self.path, STRANGER + 1, -1)
            else:
                # Let the folder pass: only the socket is another user's.
                folder = os.stat_result((0o41777, 1, 1, 2, 0, 0, 0, 0, 0, 0))

                def patch(name, real):
                    def of(path):
                        return folder if path == self.folder else real(path)

                    patched = mock.patch.object(os, name, of)
                    patched.start()
                    self.addCleanup(patched.stop)

                patch("stat", os.stat)
                patch("lstat", os.lstat)
            self.assert_refused(squatter, f"{self.path} belongs to user")

    def test_listener_of_another_user(self):
        if os.getuid() != 0:
            squatter = self.squat()
            with mock.patch.object(_trust, "check_socket"):
                with mock.patch.object(os, "geteuid", return_value=STRANGER):
                    self.assert_refused(squatter, "the process that listens is user")
            return
        squatter = self.squat(as_user=STRANGER)
        self.assertEqual(os.stat(self.path).st_uid, 0)
        self.assert_refused(squatter, f"the process that listens is user {STRANGER}'s")

    @unittest.skipUnless(os.getuid() == 0, "only root can give files away")
    def test_a_link_of_another_user(self):
        squatter = self.squat()
        link = os.path.join(self.folder, "link")
        os.symlink(self.folder, link)
        os.lchown(link, STRANGER, -1)
        path = os.path.join(link, "daemon.sock")
        with self.assertRaisesRegex(tandem.Untrusted, f"{link} belongs to user {STRANGER}"):
            tandem.Client(socket=path).queue()
        os.lchown(link, 0, -1)
        self.assertEqual(tandem.Client(socket=path).queue(), [])
        self.assertNotEqual(squatter.received, b"")

    def test_a_socket_that_comes_later_is_checked_too(self):
        self.addCleanup(setattr, _line, "RECONNECT_S", _line.RECONNECT_S)
        _line.RECONNECT_S = 0.02
        with mock.patch.dict(os.environ, {"TANDEM_SOCK": self.path}):
            job = tandem.Job()
            os.chmod(self.folder, 0o777)
            squatter = self.squat()
            with self.assertLogs("tandem", logging.WARNING) as logged:
                end = time.monotonic() + 0.3
                while time.monotonic() < end:
                    self.assertTrue(job.step())
                    time.sleep(0.01)
            self.assertEqual(len(logged.records), 1)
            job.bye()
        self.assertEqual(squatter.received, b"")


if __name__ == "__main__":
    unittest.main()
