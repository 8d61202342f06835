"""Submitting jobs and asking about them, over the daemon's HTTP API."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tandem import _api, _trust
from tandem._types import DaemonInfo, DeviceInfo, Explanation, JobInfo, JobLine, JobOptions, Param

if TYPE_CHECKING:
    from typing_extensions import Unpack

Answer = TypeVar("Answer")


class Client(_api.Connectable):
    """A daemon, by its unix socket or by URL and token.

        client = tandem.Client()
        job = client.submit(["python", "train.py"], name="first", gpus=1)
        print(client.wait(job))

    Without arguments the socket of this user's daemon is used: ``$TANDEM_DAEMON_SOCKET``, else
    ``$XDG_RUNTIME_DIR/tandem/daemon.sock``, else ``/tmp/tandem-$UID/daemon.sock``, else
    ``/run/tandem/daemon.sock`` if that one exists. Nothing is sent to a socket of another user:
    see `tandem.Untrusted`.
    """

    @overload
    def submit(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        array: None = None,
        params: None = None,
        **options: Unpack[JobOptions],
    ) -> int: ...

    @overload
    def submit(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        array: str | None = None,
        params: Sequence[Param] | None = None,
        **options: Unpack[JobOptions],
    ) -> list[int]: ...

    def submit(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        array: str | None = None,
        params: Sequence[Param] | None = None,
        **options: Any,
    ) -> int | list[int]:
        """Submits a job and returns its id; the list of ids with ``array`` or ``params``.

        ``command`` is a list of strings. ``options`` are the fields of the API: ``name``, ``gpus``,
        ``env``, ``dir`` and so on (``class_`` for ``class``). Without ``dir`` the job runs in the
        folder of this program, without ``env`` in its environment.
        """
        options.update(array=array, params=params)
        ids = self._do(_api.submit(command, options))
        return ids if array is not None or params is not None else ids[0]

    def info(self, job: int) -> JobInfo:
        """All that is known about a job."""
        return self._do(_api.info(job))

    def queue(
        self,
        state: str | None = None,
        limit: int | None = None,
        *,
        user: str | None = None,
        after: int | None = None,
    ) -> list[JobLine]:
        """The jobs, in order of their ids: in ``state``, of ``user``, with ids above ``after``.

        ``limit`` is the most that are returned.
        """
        return self._do(_api.queue(state, user, limit, after))

    def cancel(self, job: int) -> None:
        """Cancels a job."""
        self._do(_api.cancel(job))

    def hold(self, job: int) -> None:
        """Keeps a pending job from starting until `release`."""
        self._do(_api.change(job, "hold"))

    def release(self, job: int) -> None:
        """Lets a held job start."""
        self._do(_api.change(job, "release"))

    def pause(self, job: int) -> None:
        """Suspends the processes of a job; it keeps its devices."""
        self._do(_api.change(job, "pause"))

    def resume(self, job: int) -> None:
        """Lets a paused job continue."""
        self._do(_api.change(job, "resume"))

    def accum(self, job: int, parts: int | None) -> None:
        """In how many sub-batches a job computes its batches; None leaves it to the policy."""
        self._do(_api.accum(job, parts))

    def logs(
        self,
        job: int,
        stream: str | None = None,
        offset: int | None = None,
        limit: int | None = None,
    ) -> str:
        """The output of a job: ``stream`` is ``stdout`` or ``stderr``, the others count bytes."""
        return self._do(_api.logs(job, stream, offset, limit))

    def explain(self, job: int, policy: str | None = None) -> Explanation:
        """Why a job waits and when it will start."""
        return self._do(_api.explain(job, policy))

    def devices(self) -> list[DeviceInfo]:
        """The devices and the jobs on them."""
        return self._do(_api.devices())

    def drain(self, device: int) -> None:
        """Lets no further job start on a device."""
        self._do(_api.drain(device, True))

    def undrain(self, device: int) -> None:
        """Lets jobs start on a drained device again."""
        self._do(_api.drain(device, False))

    def daemon(self) -> DaemonInfo:
        """Version, policy and devices of the daemon."""
        return self._do(_api.daemon())

    @overload
    def wait(self, jobs: int, timeout: float | None = None) -> str: ...

    @overload
    def wait(self, jobs: Iterable[int], timeout: float | None = None) -> dict[int, str]: ...

    def wait(self, jobs: int | Iterable[int], timeout: float | None = None) -> str | dict[int, str]:
        """Waits until jobs have ended and returns their state; a dict by id for several.

        Raises TimeoutError after ``timeout`` seconds.
        """
        waiting = _api.Waiting(jobs, timeout)
        pauses = waiting.pauses()
        while True:
            for job in waiting.open:
                waiting.note(job, self.info(job)["state"])
            if waiting.is_over():
                return waiting.result()
            time.sleep(next(pauses))

    def _do(self, call: _api.Call[Answer]) -> Answer:
        where = str(self._address)
        connection = self._connection()
        try:
            connection.request(call.method, call.path, call.content(), call.headers(self._token))
            response = connection.getresponse()
            content = response.read(_api.ANSWER_MAX_BYTES + 1)
        except _trust.UntrustedError as cause:
            raise _api.Untrusted(where, cause) from cause
        except _api.TRANSPORT_ERRORS as cause:
            raise _api.Unreachable(where, _api.cause_of(cause)) from cause
        finally:
            connection.close()
        if len(content) > _api.ANSWER_MAX_BYTES:
            raise _api.too_long(where)
        return call.answer(where, response.status, response.reason, content)

    def _connection(self) -> http.client.HTTPConnection:
        url = self._address.url
        if url is None:
            return _UnixConnection(str(self._address.socket), self._timeout)
        host = str(url.hostname)
        if url.scheme == "https":
            return http.client.HTTPSConnection(
                host, url.port, timeout=self._timeout, context=_api.tls_context(self._ca_file)
            )
        return http.client.HTTPConnection(host, url.port, timeout=self._timeout)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = _trust.connect(self._path, self.timeout)
