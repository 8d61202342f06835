"""The client for programs that use asyncio."""

from __future__ import annotations

import asyncio
import http.client
import io
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from tandem import _api, _trust
from tandem._types import DaemonInfo, DeviceInfo, Explanation, JobInfo, JobLine, JobOptions, Param

if TYPE_CHECKING:
    import socket as sockets

    from typing_extensions import Unpack

Answer = TypeVar("Answer")


class AsyncClient(_api.Connectable):
    """`tandem.Client` with coroutines: the same methods, each awaited.

    client = tandem.AsyncClient()
    jobs = await asyncio.gather(*(client.submit(["python", "train.py", s]) for s in "abc"))
    print(await client.wait(jobs))
    """

    @overload
    async def submit(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        array: None = None,
        params: None = None,
        **options: Unpack[JobOptions],
    ) -> int: ...

    @overload
    async def submit(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        array: str | None = None,
        params: Sequence[Param] | None = None,
        **options: Unpack[JobOptions],
    ) -> list[int]: ...

    async def submit(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        array: str | None = None,
        params: Sequence[Param] | None = None,
        **options: Any,
    ) -> int | list[int]:
        """See `tandem.Client.submit`."""
        options.update(array=array, params=params)
        ids = await self._do(_api.submit(command, options))
        return ids if array is not None or params is not None else ids[0]

    async def info(self, job: int) -> JobInfo:
        """All that is known about a job."""
        return await self._do(_api.info(job))

    async def queue(
        self,
        state: str | None = None,
        limit: int | None = None,
        *,
        user: str | None = None,
        after: int | None = None,
    ) -> list[JobLine]:
        """See `tandem.Client.queue`."""
        return await self._do(_api.queue(state, user, limit, after))

    async def cancel(self, job: int) -> None:
        """Cancels a job."""
        await self._do(_api.cancel(job))

    async def hold(self, job: int) -> None:
        """Keeps a pending job from starting until `release`."""
        await self._do(_api.change(job, "hold"))

    async def release(self, job: int) -> None:
        """Lets a held job start."""
        await self._do(_api.change(job, "release"))

    async def pause(self, job: int) -> None:
        """Suspends the processes of a job; it keeps its devices."""
        await self._do(_api.change(job, "pause"))

    async def resume(self, job: int) -> None:
        """Lets a paused job continue."""
        await self._do(_api.change(job, "resume"))

    async def accum(self, job: int, parts: int | None) -> None:
        """In how many sub-batches a job computes its batches; None leaves it to the policy."""
        await self._do(_api.accum(job, parts))

    async def logs(
        self,
        job: int,
        stream: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
    ) -> str:
        """See `tandem.Client.logs`."""
        return await self._do(_api.logs(job, stream, offset, limit))

    async def explain(self, job: int, policy: str | None = None) -> Explanation:
        """Why a job waits and when it will start."""
        return await self._do(_api.explain(job, policy))

    async def devices(self) -> list[DeviceInfo]:
        """The devices and the jobs on them."""
        return await self._do(_api.devices())

    async def drain(self, device: int) -> None:
        """Lets no further job start on a device."""
        await self._do(_api.drain(device, True))

    async def undrain(self, device: int) -> None:
        """Lets jobs start on a drained device again."""
        await self._do(_api.drain(device, False))

    async def daemon(self) -> DaemonInfo:
        """Version, policy and devices of the daemon."""
        return await self._do(_api.daemon())

    @overload
    async def wait(self, jobs: int, timeout: float | None = None) -> str: ...

    @overload
    async def wait(self, jobs: Iterable[int], timeout: float | None = None) -> dict[int, str]: ...

    async def wait(
        self, jobs: int | Iterable[int], timeout: float | None = None
    ) -> str | dict[int, str]:
        """See `tandem.Client.wait`."""
        waiting = _api.Waiting(jobs, timeout)
        pauses = waiting.pauses()
        while True:
            for job in waiting.open:
                waiting.note(job, (await self.info(job))["state"])
            if waiting.is_over():
                return waiting.result()
            await asyncio.sleep(next(pauses))

    async def _do(self, call: _api.Call[Answer]) -> Answer:
        where = str(self._address)
        try:
            data = await asyncio.wait_for(self._exchange(call), self._timeout)
            response = http.client.HTTPResponse(cast("sockets.socket", _Received(data)))
            response.begin()
            content = response.read()
        except _trust.UntrustedError as cause:
            raise _api.Untrusted(where, cause) from cause
        except asyncio.TimeoutError as cause:
            raise _api.Unreachable(where, f"no answer in {self._timeout} s") from cause
        except _api.TRANSPORT_ERRORS as cause:
            raise _api.Unreachable(where, _api.cause_of(cause)) from cause
        return call.answer(where, response.status, response.reason, content)

    async def _exchange(self, call: _api.Call[Any]) -> bytes:
        """Sends a request on a connection of its own; returns all that comes back."""
        reader, writer = await self._open()
        try:
            content = call.content() or b""
            headers = {"Host": self._host(), **call.headers(self._token), "Connection": "close"}
            if content or call.method in ("POST", "PUT"):
                headers["Content-Length"] = str(len(content))
            lines = [f"{call.method} {call.path} HTTP/1.1"]
            lines += [f"{name}: {_one_line(value)}" for name, value in headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + content)
            await writer.drain()
            received = bytearray()
            while data := await reader.read(1 << 16):
                received += data
                if len(received) > _api.ANSWER_MAX_BYTES:
                    raise _api.too_long(str(self._address))
            return bytes(received)
        finally:
            writer.close()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        url = self._address.url
        if url is None:
            connected = await asyncio.to_thread(
                _trust.connect, str(self._address.socket), self._timeout
            )
            connected.setblocking(False)
            return await asyncio.open_unix_connection(sock=connected)
        secure = url.scheme == "https"
        context = _api.tls_context(self._ca_file) if secure else None
        port = url.port or (443 if secure else 80)
        return await asyncio.open_connection(url.hostname, port, ssl=context)

    def _host(self) -> str:
        return (
            "localhost"
            if self._address.url is None
            else self._address.url.netloc.rpartition("@")[2]
        )


class _Received:
    """The bytes of an answer, as the standard library's parser wants them."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def _one_line(value: str) -> str:
    if "\r" in value or "\n" in value:
        raise ValueError("a header cannot contain line breaks")
    return value
