"""The daemon's HTTP API: what is asked, and how answers are read. Shared by both clients."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from tandem._types import DaemonInfo, DeviceInfo, Explanation, JobInfo, JobLine, Json

Answer = TypeVar("Answer")

#: States that a job does not leave again.
FINAL_STATES = frozenset({"completed", "failed", "cancelled", "timeout", "oom", "unknown"})
#: How long the daemon may take to answer, in seconds.
TIMEOUT_S = 30.0
#: The longest answer that is read.
ANSWER_MAX_BYTES = 256 << 20
POLL_FIRST_S, POLL_GROWTH, POLL_MAX_S = 0.05, 1.5, 1.0
#: The socket of a daemon that serves all users of the machine.
SHARED_SOCKET = "/run/tandem/daemon.sock"


class TandemError(Exception):
    """The daemon refused: ``status`` (HTTP), ``code`` (such as ``not_found``), ``message``."""

    def __init__(self, status: int | None, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class Unreachable(TandemError):
    """No daemon answers."""

    def __init__(self, where: str, cause: object) -> None:
        super().__init__(None, "unreachable", f"no daemon answers at {where}: {cause}")


class Untrusted(TandemError):
    """Another user may listen at the daemon's socket; nothing was sent."""

    def __init__(self, where: str, cause: object) -> None:
        super().__init__(None, "untrusted", f"{where} is not used, nothing was sent: {cause}")


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """A request, and how to read the answer to it."""

    method: str
    path: str
    read: Callable[[Any], Answer]
    body: Json | None = None
    #: Whether the answer is text and not JSON.
    text: bool = False

    def headers(self, token: str | None) -> dict[str, str]:
        headers = {"Accept": "text/plain" if self.text else "application/json"}
        if self.body is not None:
            headers["Content-Type"] = "application/json"
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def content(self) -> bytes | None:
        return None if self.body is None else json.dumps(self.body).encode()

    def answer(self, where: str, status: int, reason: str, content: bytes) -> Answer:
        """Reads an answer; raises `TandemError` if it is a refusal."""
        if self.text and 200 <= status < 300:
            return self.read(content.decode(errors="replace"))
        try:
            said = json.loads(content) if content else {}
        except ValueError:
            said = None
        if not 200 <= status < 300:
            raise _refusal(status, reason, said)
        if not isinstance(said, dict):
            raise TandemError(status, "bad_answer", f"{where} is no tandem daemon")
        return self.read(said)


def submit(
    command: Sequence[str | os.PathLike[str]], options: Mapping[str, Any]
) -> Call[list[int]]:
    if isinstance(command, (str, bytes)):
        raise TypeError('the command is a list of strings, such as ["python", "train.py"]')
    body: Json = {
        "command": [os.fspath(word) for word in command],
        "dir": os.getcwd(),
        "env": dict(os.environ),
    }
    # `class` is a word of the language.
    given = ((name.rstrip("_"), value) for name, value in options.items())
    body.update((name, value) for name, value in given if value is not None)
    return Call("POST", "/v1/jobs", _field("ids"), body)


def info(job: int) -> Call[JobInfo]:
    return Call("GET", _job(job), _field("job"))


def queue(
    state: str | None, user: str | None, limit: int | None, after: int | None
) -> Call[list[JobLine]]:
    wanted = {"state": state, "user": user, "limit": limit, "after": after}
    return Call("GET", "/v1/jobs" + _query(wanted), _field("jobs"))


def cancel(job: int) -> Call[None]:
    return Call("DELETE", _job(job), _nothing)


def change(job: int, action: str) -> Call[None]:
    """``hold``, ``release``, ``pause`` or ``resume``."""
    return Call("POST", f"{_job(job)}/{action}", _nothing)


def accum(job: int, parts: int | None) -> Call[None]:
    return Call("PUT", f"{_job(job)}/accum", _nothing, {"accum": parts})


def logs(job: int, stream: str | None, offset: int | None, limit: int | None) -> Call[str]:
    wanted = {"stream": stream, "offset": offset, "limit": limit}
    return Call("GET", f"{_job(job)}/logs{_query(wanted)}", str, text=True)


def explain(job: int, policy: str | None) -> Call[Explanation]:
    path = f"{_job(job)}/explain{_query({'policy': policy})}"
    return Call("GET", path, lambda said: cast(Explanation, said))


def devices() -> Call[list[DeviceInfo]]:
    return Call("GET", "/v1/devices", _field("devices"))


def drain(device: int, drained: bool) -> Call[None]:
    action = "drain" if drained else "undrain"
    return Call("POST", f"/v1/devices/{int(device)}/{action}", _nothing)


def daemon() -> Call[DaemonInfo]:
    return Call("GET", "/v1/info", lambda said: cast(DaemonInfo, said))


@dataclass(frozen=True)
class Address:
    """Where a daemon listens: a unix socket, or a URL."""

    socket: str | None
    url: urllib.parse.SplitResult | None

    @staticmethod
    def of(socket: str | os.PathLike[str] | None, url: str | None) -> Address:
        if socket is not None and url is not None:
            raise ValueError("either socket or url, not both")
        if url is None:
            return Address(os.fspath(socket) if socket is not None else default_socket(), None)
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not an http or https URL: {url}")
        return Address(None, parts)

    def check_secret(self) -> None:
        """Raises ValueError if a token would cross the network in the clear."""
        if self.url is None or self.url.scheme == "https":
            return
        host = str(self.url.hostname)
        if host != "localhost" and not host.startswith("127.") and host != "::1":
            raise ValueError(f"a token is not sent without TLS: use https:// for {host}")

    def __str__(self) -> str:
        return str(self.socket) if self.url is None else self.url.geturl()


class Connectable:
    """What both clients are made from: the address of a daemon, a token and a time-out."""

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        url: str | None = None,
        token: str | None = None,
        timeout: float = TIMEOUT_S,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self._address = Address.of(socket, url)
        if token is not None:
            self._address.check_secret()
        self._ca_file = ca_file
        self._token = token
        self._timeout = timeout


class Waiting:
    """Jobs that are waited for: which to ask about, and how long to sleep in between."""

    def __init__(self, jobs: int | Iterable[int], timeout: float | None) -> None:
        self._single = jobs if isinstance(jobs, int) else None
        self.open = [jobs] if isinstance(jobs, int) else [int(job) for job in jobs]
        self._timeout = timeout
        self._end = None if timeout is None else time.monotonic() + timeout
        self._delay = POLL_FIRST_S
        self._states: dict[int, str] = {}

    def note(self, job: int, state: str) -> None:
        if state in FINAL_STATES:
            self._states[job] = state

    def is_over(self) -> bool:
        self.open = [job for job in self.open if job not in self._states]
        return not self.open

    def result(self) -> str | dict[int, str]:
        return self._states if self._single is None else self._states[self._single]

    def pauses(self) -> Iterator[float]:
        """Seconds to sleep before each further round; raises `TimeoutError` when time is up."""
        while True:
            remaining = None if self._end is None else self._end - time.monotonic()
            if remaining is not None and remaining <= 0:
                message = f"job {self.open[0]} has not ended after {self._timeout} s"
                raise TimeoutError(message)
            yield self._delay if remaining is None else min(self._delay, remaining)
            self._delay = min(self._delay * POLL_GROWTH, POLL_MAX_S)


def default_socket() -> str:
    """Where the daemon of this user listens."""
    named = os.environ.get("TANDEM_DAEMON_SOCKET")
    if named:
        return named
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = f"{runtime}/tandem" if runtime else _socket_folder(os.getuid())
    own = f"{folder}/daemon.sock"
    return SHARED_SOCKET if not os.path.exists(own) and os.path.exists(SHARED_SOCKET) else own


def _socket_folder(uid: int) -> str:
    """A folder in /tmp; below the state if somebody else has taken that name."""
    folder = f"/tmp/tandem-{uid}"
    try:
        is_ours = os.lstat(folder).st_uid == uid
    except OSError:
        is_ours = True
    home = os.environ.get("HOME", "")
    base = os.environ.get("XDG_STATE_HOME", "")
    if not base.startswith("/"):
        base = f"{home}/.local/state" if home.startswith("/") else ""
    return folder if is_ours or not base else f"{base}/tandem/socket-{_machine()}"


def _machine() -> str:
    for file in ("/etc/machine-id", "/proc/sys/kernel/hostname"):
        try:
            with open(file, encoding="utf-8") as opened:
                name = opened.read().strip()
        except OSError:
            continue
        if name and name != "uninitialized":
            return "".join(c for c in name if c.isascii() and c.isalnum())[:12]
    return ""


def tls_context(ca_file: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """Trusts the certificates of a file, such as the daemon's own, or those of the system."""
    return ssl.create_default_context(cafile=None if ca_file is None else os.fspath(ca_file))


def cause_of(error: BaseException) -> object:
    return error if str(error) else type(error).__name__


def too_long(where: str) -> TandemError:
    return TandemError(None, "bad_answer", f"the answer of {where} is too long")


#: What goes wrong on the way to a daemon.
TRANSPORT_ERRORS = (OSError, http.client.HTTPException)


def _job(job: int) -> str:
    return f"/v1/jobs/{int(job)}"


def _query(wanted: Mapping[str, object]) -> str:
    given = {name: value for name, value in wanted.items() if value is not None}
    return "?" + urllib.parse.urlencode(given) if given else ""


def _field(name: str) -> Callable[[Json], Any]:
    return lambda said: said[name]


def _nothing(_: object) -> None:
    return None


def _refusal(status: int, reason: str, answer: object) -> TandemError:
    said = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(said, dict):
        said = {}
    message = said.get("message") or f"the daemon answered {status} {reason}"
    return TandemError(status, said.get("code") or "error", message)
