import http.server
import json
import os
import socketserver
import tempfile
import threading
import time
import unittest

import tandem
from tandem import _api


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def address_string(self):
        return "test"

    def handle_any(self):
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else None
        token = self.headers.get("Authorization")
        self.server.seen.append((self.command, self.path, body, token))
        status, answer = self.server.answers.pop(0)
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if data:
            self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = handle_any


class UnixServer(socketserver.UnixStreamServer):
    def get_request(self):
        # The handler wants an address to print.
        return super().get_request()[0], ("test", 0)


class Requests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "daemon.sock")

    def serve(self, server, answers):
        server.seen, server.answers = [], list(answers)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server

    def client(self, *answers):
        self.server = self.serve(UnixServer(self.path, Handler), answers)
        return tandem.Client(socket=self.path)

    def test_submit(self):
        ids = [[17], [1, 2], [3]]
        client = self.client(*((201, {"schema": 1, "ids": some}) for some in ids))
        job = client.submit(["python", "train.py"], name="first", gpus=1, env={"A": "b"}, time=None)
        self.assertEqual(job, 17)
        expected = {"command": ["python", "train.py"], "dir": os.getcwd(), "name": "first"}
        expected.update(gpus=1, env={"A": "b"})
        self.assertEqual(self.server.seen, [("POST", "/v1/jobs", expected, None)])
        self.assertEqual(client.submit(["true"], dir="/", array="0-1"), [1, 2])
        self.assertEqual(self.server.seen[1][2]["dir"], "/")
        # An array of one task is an array, too.
        self.assertEqual(client.submit(["true"], array="7", class_="tiny"), [3])
        self.assertEqual(self.server.seen[2][2]["class"], "tiny")
        with self.assertRaises(TypeError):
            client.submit("python train.py")

    def test_info_queue_cancel(self):
        job = {"id": 17, "state": "running", "exit_code": None}
        client = self.client(
            (200, {"schema": 1, "job": job}),
            (200, {"schema": 1, "jobs": [job]}),
            (200, {"schema": 1, "jobs": []}),
            (200, b""),
        )
        self.assertEqual(client.info(17), job)
        self.assertEqual(client.queue(), [job])
        self.assertEqual(client.queue(state="held", limit=5), [])
        self.assertIsNone(client.cancel(17))
        self.assertEqual(
            [seen[:2] for seen in self.server.seen],
            [
                ("GET", "/v1/jobs/17"),
                ("GET", "/v1/jobs"),
                ("GET", "/v1/jobs?state=held&limit=5"),
                ("DELETE", "/v1/jobs/17"),
            ],
        )

    def test_changes_and_questions(self):
        done = (200, {"schema": 1})
        devices = [{"index": 0, "state": "up"}]
        answers = [done] * 7 + [
            (200, b"step 1\nstep 2\xff\n"),
            (200, {"state": "pending", "waits": "for a GPU"}),
            (200, {"devices": devices}),
            (200, {"version": "0.1.0"}),
        ]
        client = self.client(*answers)
        for change in [client.hold, client.release, client.pause, client.resume]:
            self.assertIsNone(change(17))
        self.assertIsNone(client.accum(17, 4))
        self.assertIsNone(client.drain(0))
        self.assertIsNone(client.undrain(0))
        self.assertEqual(client.logs(17, stream="stderr", offset=3), "step 1\nstep 2\ufffd\n")
        self.assertEqual(client.explain(17, policy="fifo")["waits"], "for a GPU")
        self.assertEqual(client.devices(), devices)
        self.assertEqual(client.daemon()["version"], "0.1.0")
        self.assertEqual(
            [seen[:3] for seen in self.server.seen],
            [
                ("POST", "/v1/jobs/17/hold", None),
                ("POST", "/v1/jobs/17/release", None),
                ("POST", "/v1/jobs/17/pause", None),
                ("POST", "/v1/jobs/17/resume", None),
                ("PUT", "/v1/jobs/17/accum", {"accum": 4}),
                ("POST", "/v1/devices/0/drain", None),
                ("POST", "/v1/devices/0/undrain", None),
                ("GET", "/v1/jobs/17/logs?stream=stderr&offset=3", None),
                ("GET", "/v1/jobs/17/explain?policy=fifo", None),
                ("GET", "/v1/devices", None),
                ("GET", "/v1/info", None),
            ],
        )

    def test_wait(self):
        def states(*states):
            return [(200, {"schema": 1, "job": {"state": state}}) for state in states]

        client = self.client(*states("pending", "running", "completed", "running", "oom", "failed"))
        self.assertEqual(client.wait(17), "completed")
        self.assertEqual(client.wait([1, 2]), {1: "failed", 2: "oom"})

    def test_wait_no_longer_than_told(self):
        client = self.client(*[(200, {"schema": 1, "job": {"state": "running"}})] * 100)
        start = time.monotonic()
        with self.assertRaisesRegex(TimeoutError, "job 3 has not ended after 0.2 s"):
            client.wait([3, 4], timeout=0.2)
        self.assertLess(time.monotonic() - start, 5)
        self.assertLess(len(self.server.seen), 30, "the polls get rarer")

    def test_refusals(self):
        client = self.client(
            (404, {"error": {"code": "not_found", "message": "job 9 is not known"}}),
            (500, b"<html>"),
            (503, {"error": "busy"}),
            (200, b"[]"),
        )
        for status, code, message in [
            (404, "not_found", "job 9 is not known"),
            (500, "error", "the daemon answered 500 Internal Server Error"),
            (503, "error", "the daemon answered 503 Service Unavailable"),
            (200, "bad_answer", f"{self.path} is no tandem daemon"),
        ]:
            with self.assertRaises(tandem.TandemError) as caught:
                client.info(9)
            error = caught.exception
            self.assertEqual((error.status, error.code, str(error)), (status, code, message))

    def test_nobody_answers(self):
        with self.assertRaisesRegex(tandem.Unreachable, "no daemon answers at /absent.sock"):
            tandem.Client(socket="/absent.sock").queue()
        with self.assertRaises(tandem.Unreachable):
            tandem.Client(url="http://127.0.0.1:1").queue()

    def test_a_token_is_not_sent_in_the_clear_to_another_machine(self):
        with self.assertRaisesRegex(ValueError, "https"):
            tandem.Client(url="http://example.org:7171", token="secret")
        tandem.Client(url="https://example.org:7171", token="secret")
        tandem.Client(url="http://127.0.0.1:7171", token="secret")

    def test_tcp_with_a_token(self):
        server = self.serve(
            socketserver.TCPServer(("127.0.0.1", 0), Handler), [(200, {"jobs": []})]
        )
        url = f"http://127.0.0.1:{server.server_address[1]}"
        self.assertEqual(tandem.Client(url=url, token="secret").queue(), [])
        self.assertEqual(server.seen, [("GET", "/v1/jobs", None, "Bearer secret")])

    def test_places(self):
        for bad in [{"url": "ftp://x"}, {"url": "here"}, {"url": "http://x", "socket": "y"}]:
            with self.assertRaises(ValueError):
                tandem.Client(**bad)
        before = dict(os.environ)
        self.addCleanup(os.environ.update, before)
        self.addCleanup(os.environ.clear)
        for name in ["TANDEM_DAEMON_SOCKET", "XDG_RUNTIME_DIR"]:
            os.environ.pop(name, None)
        if not os.path.exists("/run/tandem/daemon.sock"):
            self.assertEqual(_api.default_socket(), f"/tmp/tandem-{os.getuid()}/daemon.sock")
            os.environ["XDG_RUNTIME_DIR"] = "/run/user/1"
            self.assertEqual(_api.default_socket(), "/run/user/1/tandem/daemon.sock")
        # Somebody else made the folder, to keep a user from having a daemon.
        taken, other = "/tmp/tandem-41", 41
        os.mkdir(taken)
        self.addCleanup(os.rmdir, taken)
        os.environ["XDG_STATE_HOME"] = "/s"
        found = _api._socket_folder(other)
        self.assertEqual(found, f"/s/tandem/socket-{_api._machine()}")
        self.assertEqual(_api._socket_folder(42), "/tmp/tandem-42")
        os.environ["TANDEM_DAEMON_SOCKET"] = "/a.sock"
        self.assertEqual(_api.default_socket(), "/a.sock")


if __name__ == "__main__":
    unittest.main()
