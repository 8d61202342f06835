"""What the daemon answers. Fields that are absent from an answer are absent from its dict."""

from __future__ import annotations

from typing import Any, TypedDict

# Written as calls, since `class` cannot be a name in a class body.
_JobClass = TypedDict("_JobClass", {"class": str}, total=False)


class ArrayTask(TypedDict, total=False):
    """Which task of a submission of several a job is."""

    first: int
    number: int
    at_a_time: int | None


class LatencyInfo(TypedDict, total=False):
    """The latency of a service against its promise."""

    slo: str | None
    promised_ms: float | None
    requests: int
    rate_per_s: float | None
    p50_ms: float | None
    p99_ms: float | None
    is_kept: bool | None
    kept: float | None


class JobLine(_JobClass, total=False):
    """What everyone may know about a job."""

    id: int
    name: str
    user: str
    state: str
    reason: str | None
    gpus: float
    devices: list[int]
    beside: list[int]
    rate: float | None
    rate_from: str | None
    rate_measured: bool
    submit_time: str
    start_time: str | None
    end_time: str | None
    run_s: float
    shared_s: float
    exit_code: int | None
    external: str | None
    task: ArrayTask | None
    latency: LatencyInfo | None


class JobPrivate(TypedDict, total=False):
    """What only the owner of a job and root may know."""

    command: list[str]
    dir: str
    env: dict[str, str]
    params: dict[str, str]
    stdout: str
    stderr: str


class JobInfo(JobLine, total=False):
    """All that is known about a job."""

    begin_time: str | None
    caps: list[str]
    cpu_s: float
    dependency: str | None
    done_s: float
    enforcement: str
    estimate_from: str | None
    estimate_s: float | None
    exclusive: bool
    gpu_memory_bytes: int | None
    may_change: bool
    max_slowdown: float | None
    memory_peak_bytes: int
    normalised_throughput: float | None
    pid: int | None
    priority: int
    retries_left: int
    steps_per_s: float | None
    steps_per_s_alone: float | None
    stop_signal: str | None
    private: JobPrivate | None
    retried: int
    runs: int
    share: float
    share_promised: float | None
    signal: int | None
    slowdown_measured: float | None
    slowdown_predicted: float | None
    sub_batches: int
    time_limit_s: float | None
    uid: int


class DeviceInfo(TypedDict, total=False):
    """One device."""

    node: str
    index: int
    name: str
    kind: str
    state: str
    reason: str | None
    jobs: list[int]
    memory_bytes: int
    memory_used_bytes: int | None
    foreign_bytes: int | None
    utilization: float | None
    normalised_throughput: float | None
    measured: bool


class DeviceReason(TypedDict, total=False):
    """What keeps a job from a device."""

    device: int
    reason: str


class Explanation(TypedDict, total=False):
    """Why a job waits and when it will start."""

    start_note: str | None
    schema: int
    id: int | None
    state: str
    policy: str
    waits: str | None
    devices: list[DeviceReason]
    ahead: list[int]
    after: list[int]
    beside: list[int]
    start_in_s: list[float] | None
    end_in_s: list[float] | None
    slowdown: float | None
    effect_on_others_s: float | None
    draws: int
    draws_started: int


class DaemonInfo(TypedDict, total=False):
    """What the daemon is."""

    partition: str | None
    schema: int
    version: str
    policy: str
    policies: list[str]
    provider: str
    devices: int
    up_s: float
    uid: int
    pid: int
    jobs: dict[str, int]
    plans_rejected: int
    cgroups: str


class Param(TypedDict):
    """One parameter of a sweep."""

    name: str
    values: list[str]


class ServiceRequest(TypedDict, total=False):
    """What makes a job a service."""

    slo: str | None
    rate_per_s: float | None
    latency_regex: str | None


class JobOptions(TypedDict, total=False):
    """How a job is submitted, besides its command. ``class_`` is the API's ``class``."""

    account: str | None
    begin_unix_s: float | None
    class_: str | None
    dependency: str | None
    dir: str | None
    env: dict[str, str] | None
    estimate_s: float | None
    exclusive: bool | None
    gpu_memory_bytes: int | None
    gpus: float | None
    hold: bool | None
    kill_grace_s: float | None
    mail: str | None
    max_slowdown: float | None
    name: str | None
    partition: str | None
    priority: int | None
    progress_regex: str | None
    qos: str | None
    requeue: bool | None
    reservation: int | None
    retries: int | None
    service: ServiceRequest | None
    share: float | None
    slurm_env: bool | None
    stderr: str | None
    stdout: str | None
    stop_signal: str | None
    time_limit_s: float | None
    webhook: str | None


#: A JSON object.
Json = dict[str, Any]
