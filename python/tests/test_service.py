"""What a service reports."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import unittest
from unittest import mock

import tandem


class ServiceTest(unittest.TestCase):
    def test_requests_are_counted_with_their_percentiles(self) -> None:
        service = tandem.Service()
        for millis in range(1, 101):
            service.add(millis / 1000)
        report = service.report()
        self.assertEqual((report["op"], report["n"]), ("requests", 100))
        self.assertAlmostEqual(report["p50_ms"], 50)
        self.assertAlmostEqual(report["p99_ms"], 99)
        self.assertEqual(service.report()["n"], 0)

    def test_a_request_that_fails_counts_and_nonsense_is_refused(self) -> None:
        service = tandem.Service()
        with self.assertRaises(KeyError), service.request():
            raise KeyError
        self.assertEqual(service.report()["n"], 1)
        for seconds in (-1.0, float("nan"), float("inf")):
            with self.assertRaisesRegex(ValueError, "latency"):
                service.add(seconds)

    def test_reports_go_to_the_daemon(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "job.sock")
            listener = socket.socket(socket.AF_UNIX)
            self.addCleanup(listener.close)
            listener.bind(path)
            listener.listen()
            listener.settimeout(30)
            with mock.patch.dict(os.environ, {"TANDEM_SOCK": path}):
                service = tandem.Service(window_s=0.1)
            connection, _ = listener.accept()
            self.addCleanup(connection.close)
            connection.settimeout(30)
            service.add(0.004)
            lines = connection.makefile()
            self.addCleanup(lines.close)
            self.assertEqual(json.loads(lines.readline())["op"], "hello")
            report = json.loads(lines.readline())
            while report["n"] == 0:
                report = json.loads(lines.readline())
            self.assertAlmostEqual(report["p99_ms"], 4)


if __name__ == "__main__":
    unittest.main()
