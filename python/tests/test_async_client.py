import asyncio
import inspect
import json
import socketserver
import unittest

import tandem
from test_client import Handler, UnixServer
from test_client import Requests as Servers


class Requests(Servers):
    """The requests of the other client's tests, made with coroutines."""

    def client(self, *answers):
        self.server = self.serve(UnixServer(self.path, Handler), answers)
        return Awaited(tandem.AsyncClient(socket=self.path))

    def test_nobody_answers(self):
        with self.assertRaisesRegex(tandem.Unreachable, "no daemon answers at /absent.sock"):
            asyncio.run(tandem.AsyncClient(socket="/absent.sock").queue())
        with self.assertRaises(tandem.Unreachable):
            asyncio.run(tandem.AsyncClient(url="http://127.0.0.1:1").queue())

    def test_tcp_with_a_token(self):
        server = self.serve(
            socketserver.TCPServer(("127.0.0.1", 0), Handler), [(200, {"jobs": []})]
        )
        url = f"http://127.0.0.1:{server.server_address[1]}"
        client = tandem.AsyncClient(url=url, token="secret")
        self.assertEqual(asyncio.run(client.queue()), [])
        self.assertEqual(server.seen, [("GET", "/v1/jobs", None, "Bearer secret")])
        with self.assertRaisesRegex(ValueError, "line breaks"):
            asyncio.run(tandem.AsyncClient(url=url, token="a\r\nb: c").queue())

    def test_places(self):
        with self.assertRaises(ValueError):
            tandem.AsyncClient(url="http://x", socket="y")

    def test_an_answer_that_does_not_come(self):
        async def silent(reader, writer):
            while await reader.read(1000):
                pass
            writer.close()

        async def ask():
            server = await asyncio.start_unix_server(silent, self.path)
            try:
                client = tandem.AsyncClient(socket=self.path, timeout=0.2)
                with self.assertRaisesRegex(tandem.Unreachable, "no answer in 0.2 s"):
                    await client.queue()
            finally:
                server.close()
                # Until the connection is closed at the other end, too.
                await asyncio.sleep(0.05)

        asyncio.run(ask())

    def test_requests_at_the_same_time(self):
        asked = []

        async def answer(reader, writer):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            asked.append(head)
            # Nobody is answered before all have asked; in pieces, as a stream may be.
            while len(asked) < 5:
                await asyncio.sleep(0.005)
            body = json.dumps({"job": {"id": int(head.split()[1].rpartition("/")[2])}}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for byte in body:
                writer.write(b"1\r\n%c\r\n" % byte)
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            writer.close()

        async def ask():
            server = await asyncio.start_unix_server(answer, self.path)
            client = tandem.AsyncClient(socket=self.path)
            jobs = await asyncio.gather(*(client.info(job) for job in range(5)))
            server.close()
            return jobs

        self.assertEqual(asyncio.run(ask()), [{"id": job} for job in range(5)])
        for head in asked:
            self.assertIn("\r\nConnection: close\r\n", head)


class Awaited:
    """A client whose coroutines are run to their end."""

    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        method = getattr(self._client, name)
        return lambda *args, **options: asyncio.run(method(*args, **options))


class Alike(unittest.TestCase):
    def test_both_clients_have_the_same_methods(self):
        def methods(kind):
            public = inspect.getmembers(kind, inspect.isfunction)
            return {
                name: (inspect.signature(method), inspect.iscoroutinefunction(method))
                for name, method in public
                if not name.startswith("_")
            }

        plain, awaited = methods(tandem.Client), methods(tandem.AsyncClient)
        self.assertEqual(sorted(plain), sorted(awaited))
        for name, (signature, is_coroutine) in awaited.items():
            self.assertTrue(is_coroutine, name)
            self.assertEqual(plain[name], (signature, False), name)


if __name__ == "__main__":
    unittest.main()
