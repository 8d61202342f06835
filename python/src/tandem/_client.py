"""Submitting jobs and asking about them, over the daemon's HTTP API."""

import http.client
import json
import os
import socket as sockets
import time
import urllib.parse

# Everything that is known about the API's paths and names.
JOBS = "/v1/jobs"
JOB = "/v1/jobs/{id}"
IDS, JOB_KEY, JOBS_KEY, ERROR, STATE = "ids", "job", "jobs", "error", "state"
#: States that a job does not leave again.
FINAL_STATES = frozenset({"completed", "failed", "cancelled", "timeout", "oom", "unknown"})

#: How long the daemon may take to answer.
TIMEOUT_S = 30.0
POLL_FIRST_S, POLL_GROWTH, POLL_MAX_S = 0.05, 1.5, 1.0


class TandemError(Exception):
    """The daemon refused: ``status`` (HTTP), ``code`` (such as ``not_found``), ``message``."""

    def __init__(self, status, code, message):
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class Unreachable(TandemError):
    """No daemon answers."""

    def __init__(self, where, cause):
        super().__init__(None, "unreachable", f"no daemon answers at {where}: {cause}")


class Client:
    """A daemon, by its unix socket or by URL and token.

        client = tandem.Client()
        job = client.submit(["python", "train.py"], name="first", gpus=1)
        print(client.wait(job))

    Without arguments the socket of this user's daemon is meant: ``$TANDEM_DAEMON_SOCKET``, else
    ``$XDG_RUNTIME_DIR/tandem/daemon.sock``, else ``/tmp/tandem-$UID/daemon.sock``, else
    ``/run/tandem/daemon.sock`` if that one exists.
    """

    def __init__(self, socket=None, url=None, token=None, timeout=TIMEOUT_S):
        if socket is not None and url is not None:
            raise ValueError("either socket or url, not both")
        self._token = token
        self._timeout = timeout
        self._url = None
        self._socket = None
        if url is None:
            self._socket = os.fspath(socket) if socket is not None else default_socket()
        else:
            self._url = urllib.parse.urlsplit(url)
            if self._url.scheme not in ("http", "https") or not self._url.hostname:
                raise ValueError(f"not an http or https URL: {url}")

    def submit(self, command, **options):
        """Submits a job and returns its id; a list of ids if it is an array.

        ``command`` is a list of strings. ``options`` are the fields of the API: ``name``, ``gpus``,
        ``env``, ``dir`` and so on. Without ``dir`` the job runs where this program does, without
        ``env`` in the environment that this program has.
        """
        if isinstance(command, (str, bytes)):
            raise TypeError('the command is a list of strings, such as ["python", "train.py"]')
        body = {
            "command": [os.fspath(word) for word in command],
            "dir": os.getcwd(),
            "env": dict(os.environ),
        }
        body.update((name, value) for name, value in options.items() if value is not None)
        ids = self._call("POST", JOBS, body)[IDS]
        return ids[0] if len(ids) == 1 else ids

    def info(self, job):
        """All that is known about a job, as a dict."""
        return self._call("GET", JOB.format(id=int(job)))[JOB_KEY]

    def queue(self, state=None, limit=None):
        """The jobs, as a list of dicts; those in ``state`` only, ``limit`` at most."""
        wanted = {"state": state, "limit": limit}
        query = urllib.parse.urlencode({k: v for k, v in wanted.items() if v is not None})
        return self._call("GET", f"{JOBS}?{query}" if query else JOBS)[JOBS_KEY]

    def cancel(self, job):
        """Cancels a job."""
        self._call("DELETE", JOB.format(id=int(job)))

    def wait(self, jobs, timeout=None):
        """Waits until jobs are at their end and returns their state; a dict by id for several.

        Raises TimeoutError after ``timeout`` seconds.
        """
        several = not isinstance(jobs, int)
        waiting = [int(job) for job in jobs] if several else [jobs]
        end = None if timeout is None else time.monotonic() + timeout
        states = {}
        delay = POLL_FIRST_S
        while True:
            for job in waiting:
                state = self.info(job)[STATE]
                if state in FINAL_STATES:
                    states[job] = state
            waiting = [job for job in waiting if job not in states]
            if not waiting:
                return states if several else states[jobs]
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"job {waiting[0]} is not at its end after {timeout} s")
            time.sleep(delay if left is None else min(delay, left))
            delay = min(delay * POLL_GROWTH, POLL_MAX_S)

    def _call(self, method, path, body=None):
        headers = {"Accept": "application/json"}
        if body is not None:
            body = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = self._connection()
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as cause:
            raise Unreachable(self._where(), cause or type(cause).__name__) from cause
        finally:
            connection.close()
        try:
            answer = json.loads(text) if text else {}
        except ValueError:
            answer = None
        if not 200 <= response.status < 300:
            raise _refusal(response, answer)
        if not isinstance(answer, dict):
            raise TandemError(response.status, "bad_answer", f"{self._where()} is no tandem daemon")
        return answer

    def _connection(self):
        if self._url is None:
            return _UnixConnection(self._socket, self._timeout)
        kind = http.client.HTTPConnection
        if self._url.scheme == "https":
            kind = http.client.HTTPSConnection
        return kind(self._url.hostname, self._url.port, timeout=self._timeout)

    def _where(self):
        return self._socket if self._url is None else self._url.geturl()


def default_socket():
    """Where the daemon of this user listens."""
    named = os.environ.get("TANDEM_DAEMON_SOCKET")
    if named:
        return named
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = f"{runtime}/tandem" if runtime else f"/tmp/tandem-{os.getuid()}"
    own, shared = f"{own}/daemon.sock", "/run/tandem/daemon.sock"
    return shared if not os.path.exists(own) and os.path.exists(shared) else own


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _refusal(response, answer):
    said = answer.get(ERROR) if isinstance(answer, dict) else None
    if not isinstance(said, dict):
        said = {}
    message = said.get("message") or f"the daemon answered {response.status} {response.reason}"
    return TandemError(response.status, said.get("code") or "error", message)
