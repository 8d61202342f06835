// The state of the page: read once when the stream of events opens, then kept up to date by the events. What it keeps is
// bounded: jobs that are over, placements that are long past and series are let go.

import { batch, computed, signal } from "@preact/signals";
import type {
  DaemonInfo, DeviceInfo, Devices, JobChange, JobLine, JobPage, JobState, PlacementInfo, QueueForecast, Sample, SampleJob, Savings, Timeline,
} from "../api/types.ts";
import { ApiError, get } from "./api.ts";
import { Live, whileVisible } from "./live.ts";
import type { Connection } from "./live.ts";
import { Placements } from "./stays.ts";
import { sayLoss } from "./words.ts";

/** Jobs that are over and kept, for those who look at the latest. */
const OVER_MAX = 200;
const ACTIVE_MAX = 10_000;
const PLACEMENTS_MAX = 20_000;
export const RANGES_S = [300, 900, 3600, 21_600, 86_400] as const;
/** A forecast is asked for at most this often, and only after something has changed. */
const FORECAST_GAP_MS = 4000;
const SAVINGS_GAP_MS = 30_000;

const OVER: ReadonlySet<JobState> = new Set(["completed", "failed", "cancelled", "timeout", "oom", "unknown"]);
export const isOver = (state: JobState): boolean => OVER.has(state);

export const connection = signal<Connection>("connecting");
export const problem = signal<string | null>(null);
export const info = signal<DaemonInfo | null>(null);
/** When the daemon started, in seconds since 1970. */
const started = signal(0);
export const devices = signal<readonly DeviceInfo[]>([]);
export const provider = signal("");
export const forecast = signal<QueueForecast | null>(null);
export const savings = signal<Savings | null>(null);
export const range = signal<number>(RANGES_S[2]);
/** With more GPUs than this a row is a node until the reader chooses otherwise. */
const GPU_ROWS_MAX = 128;
const chosenLevel = signal<"gpu" | "node" | null>(null);
/** What a row of the picture is. */
export const level = computed<"gpu" | "node">(() => {
  const isLarge = devices.value.length > GPU_ROWS_MAX && devices.value.some(({ node }) => node !== devices.value[0].node);
  return chosenLevel.value ?? (isLarge ? "node" : "gpu");
});
export const setLevel = (rows: "gpu" | "node"): void => {
  chosenLevel.value = rows;
};
export const loaded = signal(false);
/** More jobs wait than are shown. */
export const queueIsCut = signal(false);
/** The daemon's clock minus this machine's, in seconds. */
const skew = signal(0);
/** Counts changes: of jobs, and of placements. */
export const jobsVersion = signal(0);
export const staysVersion = signal(0);
/** The latest sample, for the page of a job. */
export const sampled = signal<ReadonlyMap<number, SampleJob>>(new Map());

const tick = signal(0);
/** Seconds since 1970 by the daemon's clock; moves once a second. */
export const now = computed(() => {
  void tick.value;
  return Date.now() / 1000 + skew.value;
});

/** For how long the daemon has run, in seconds. */
export const upSeconds = computed(() => now.value - started.value);

const jobs = new Map<number, JobLine>();
/** For each of them, the number of its latest change. */
const changes = new Map<number, number>();
let changeCount = 0;
const overOrder: number[] = [];
export const placements = new Placements(PLACEMENTS_MAX, RANGES_S[RANGES_S.length - 1]);

export const jobOf = (id: number): JobLine | undefined => jobs.get(id);

/** A number that differs after every change of a job. Each job has its own: several may change at once. */
export function changesOf(id: number): number {
  void jobsVersion.value;
  return changes.get(id) ?? 0;
}

/** Waiting jobs, those that will start first in front. */
export const waiting = computed<readonly JobLine[]>(() => {
  void jobsVersion.value;
  const starts = new Map((forecast.value?.jobs ?? []).map((job) => [job.id, job.start_in_s?.[1] ?? Infinity]));
  const order = (job: JobLine) => starts.get(job.id) ?? Infinity;
  return [...jobs.values()]
    .filter((job) => job.state === "pending" || job.state === "held")
    .sort((a, b) => order(a) - order(b) || a.id - b.id);
});

export const onDevices = computed<readonly JobLine[]>(() => {
  void jobsVersion.value;
  return [...jobs.values()]
    .filter((job) => job.state === "running" || job.state === "paused" || job.state === "completing")
    .sort((a, b) => a.id - b.id);
});

export const recentlyOver = computed<readonly JobLine[]>(() => {
  void jobsVersion.value;
  return overOrder.toReversed().flatMap((id) => jobs.get(id) ?? []);
});

export const counts = computed(() => ({
  running: onDevices.value.filter((job) => job.state === "running").length,
  paused: onDevices.value.filter((job) => job.state === "paused").length,
  pending: waiting.value.filter((job) => job.state === "pending").length,
  held: waiting.value.filter((job) => job.state === "held").length,
}));

/** Start ranges of waiting jobs, in seconds since 1970. */
export const startRanges = computed<ReadonlyMap<number, readonly [number, number, number]>>(() => {
  const prediction = forecast.value;
  if (!prediction) return new Map();
  const at = Date.parse(prediction.time) / 1000;
  return new Map(
    prediction.jobs.flatMap((job) =>
      job.start_in_s ? [[job.id, job.start_in_s.map((s) => at + s) as unknown as [number, number, number]] as const] : [],
    ),
  );
});

/** Why jobs wait, as the policy says. */
export const waitReasons = computed<ReadonlyMap<number, string>>(
  () => new Map((forecast.value?.jobs ?? []).flatMap((job) => (job.waits ? [[job.id, job.waits] as const] : []))),
);

// ---- reading everything -----------------------------------------------------------------------------------------------

let reading: AbortController | null = null;

/** Jobs on GPUs and jobs that wait: of a queue that is too long for a page the first ones. */
async function everyActive(signal: AbortSignal): Promise<{ jobs: JobLine[]; isCut: boolean }> {
  const read = (state: string) => get<JobPage>("/v1/jobs", { state, limit: ACTIVE_MAX }, signal);
  const [present, queue] = await Promise.all([read("running,paused,completing"), read("pending,held")]);
  return { jobs: [...present.jobs, ...queue.jobs], isCut: Boolean(queue.next_after) };
}

async function timeline(signal: AbortSignal): Promise<PlacementInfo[]> {
  const since = Date.now() / 1000 + skew.value - range.value;
  const stays: PlacementInfo[] = [];
  let before: number | null | undefined;
  do {
    const page: Timeline = await get("/v1/timeline", { since, before, limit: 5000 }, signal);
    stays.push(...page.placements);
    before = page.next_before;
  } while (before && stays.length < PLACEMENTS_MAX);
  return stays;
}

/** Reads all that the page shows. What a slow answer misses, the events that arrive meanwhile tell. */
export async function refresh(): Promise<void> {
  reading?.abort();
  const own = new AbortController();
  reading = own;
  try {
    const [about, machine, active, over, stays] = await Promise.all([
      get<DaemonInfo>("/v1/info", {}, own.signal),
      get<Devices>("/v1/devices", {}, own.signal),
      everyActive(own.signal),
      get<JobPage>("/v1/jobs", { state: "completed,failed,cancelled,timeout,oom,unknown", order: "desc", limit: 50 }, own.signal),
      timeline(own.signal),
    ]);
    batch(() => {
      info.value = about;
      started.value = now.peek() - about.up_s;
      provider.value = machine.provider;
      devices.value = machine.devices;
      setJobs(active.jobs, over.jobs);
      queueIsCut.value = active.isCut;
      placements.clear();
      for (const stay of stays) placements.put(stay);
      staysVersion.value++;
      problem.value = null;
      loaded.value = true;
    });
    void readForecast();
    void readSavings();
  } catch (error) {
    if (own.signal.aborted) return;
    problem.value = error instanceof ApiError ? error.message : String(error);
  } finally {
    if (reading === own) {
      reading = null;
      applyAll();
    }
  }
}

function setJobs(active: readonly JobLine[], over: readonly JobLine[]): void {
  jobs.clear();
  changes.clear();
  overOrder.length = 0;
  for (const job of active) jobs.set(job.id, job);
  for (const job of over.toReversed()) {
    jobs.set(job.id, job);
    overOrder.push(job.id);
  }
  jobsVersion.value++;
}

/** More or less of the past. */
export function setRange(seconds: number): void {
  range.value = seconds;
  void refresh();
}

// ---- what is computed on demand: forecast and savings -------------------------------------------------------------------

/** Asks at most once per gap, and once more after the last change. */
function spaced(gap: number, work: () => Promise<void>): () => Promise<void> {
  let last = -Infinity;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let busy = false;
  const run = async (): Promise<void> => {
    timer = undefined;
    if (busy) return later();
    busy = true;
    last = Date.now();
    try {
      await work();
    } finally {
      busy = false;
      last = Math.max(last, Date.now() - gap / 2);
    }
  };
  const later = (): void => {
    timer ??= setTimeout(() => void run(), Math.max(0, last + gap - Date.now()));
  };
  return async () => {
    if (Date.now() - last >= gap && !busy) await run();
    else later();
  };
}

const quietly = (work: () => Promise<void>) => async () => {
  try {
    await work();
  } catch (error) {
    // A daemon that does not answer is said elsewhere; the picture stays as it is.
    if (!(error instanceof ApiError)) throw error;
  }
};

const readForecast = spaced(
  FORECAST_GAP_MS,
  quietly(async () => {
    forecast.value = await get<QueueForecast>("/v1/forecast");
  }),
);

const readSavings = spaced(
  SAVINGS_GAP_MS,
  quietly(async () => {
    savings.value = await get<Savings>("/v1/savings", { since: startOfDay() });
  }),
);

/** Midnight of the reader's zone, in seconds since 1970. */
export function startOfDay(): number {
  const today = new Date(now.peek() * 1000);
  today.setHours(0, 0, 0, 0);
  return today.getTime() / 1000;
}

// ---- events -------------------------------------------------------------------------------------------------------------

/** Events of one frame are applied together: a burst costs one picture. */
const waitingEvents: { kind: string; data: unknown }[] = [];
let scheduled = false;

export function receive(kind: string, data: unknown): void {
  waitingEvents.push({ kind, data });
  if (scheduled) return;
  scheduled = true;
  setTimeout(applyAll, 50);
}

function applyAll(): void {
  scheduled = false;
  // What is being read is older than these events: they come after it.
  if (reading) return;
  const events = waitingEvents.splice(0);
  batch(() => {
    for (const { kind, data } of events) apply(kind, data);
  });
}

function apply(kind: string, data: unknown): void {
  if (kind === "job") {
    applyChange(data as JobChange);
    void readForecast();
    void readSavings();
  } else if (kind === "placement") {
    placements.put(data as PlacementInfo);
    placements.prune(now.peek());
    staysVersion.value++;
  } else if (kind === "sample") applySample(data as Sample);
}

function applyChange(change: JobChange): void {
  const before = jobs.get(change.id);
  const line: JobLine = {
    ...(before ?? blank(change)),
    state: change.state,
    reason: change.reason ?? null,
    devices: change.devices,
    exit_code: change.exit_code ?? null,
    start_time: change.start_time ?? before?.start_time ?? null,
    end_time: change.end_time ?? before?.end_time ?? null,
  };
  if (change.state !== "running") {
    line.rate = null;
    line.beside = [];
  }
  jobs.set(change.id, line);
  if (isOver(change.state) && !(before && isOver(before.state))) {
    overOrder.push(change.id);
    while (overOrder.length > OVER_MAX) {
      const oldest = overOrder.shift();
      if (oldest === undefined) break;
      jobs.delete(oldest);
      changes.delete(oldest);
    }
  }
  changes.set(change.id, ++changeCount);
  jobsVersion.value++;
}

function blank(change: JobChange): JobLine {
  return {
    id: change.id,
    name: change.name || `job ${change.id}`,
    user: change.user ?? "",
    state: change.state,
    gpus: change.gpus ?? 1,
    class: change.class ?? "",
    devices: [],
    beside: [],
    rate_measured: false,
    submit_time: change.submit_time || change.time,
    run_s: 0,
    shared_s: 0,
  };
}

function applySample(sample: Sample): void {
  skew.value = Date.parse(sample.time) / 1000 - Date.now() / 1000;
  const measured = new Map<number, SampleJob>();
  for (const job of sample.jobs) {
    measured.set(job.id, job);
    const line = jobs.get(job.id);
    if (line && line.state === "running") {
      jobs.set(job.id, { ...line, rate: job.rate ?? null, rate_measured: job.rate_measured, beside: job.beside });
    }
    placements.setRate(job.id, job.rate ?? null, job.rate_measured);
  }
  const byIndex = new Map(sample.devices.map((device) => [device.index, device]));
  devices.value = devices.value.map((device) => ({ ...device, ...byIndex.get(device.index) }));
  sampled.value = measured;
  jobsVersion.value++;
  staysVersion.value++;
}

/** Since when nothing comes any more. */
let lostAt: number | null = null;

/** Says why nothing comes any more: a stream that breaks gives no reason. */
async function explainLoss(since: number): Promise<void> {
  try {
    await get<DaemonInfo>("/v1/info");
  } catch (error) {
    if (connection.value === "live") return;
    problem.value = error instanceof ApiError ? sayLoss(error, loaded.value ? since : null) : String(error);
  }
}

// ---- life ---------------------------------------------------------------------------------------------------------------

const live = new Live(
  { url: "/v1/events", kinds: ["job", "placement", "sample", "ping"] },
  {
    opened: () => void refresh(),
    state: (state) => {
      connection.value = state;
      if (state === "live") lostAt = null;
      if (state === "lost") void explainLoss((lostAt ??= now.peek()));
    },
    event: receive,
  },
);

export function begin(): void {
  whileVisible(live);
  setInterval(() => {
    if (document.visibilityState === "visible") tick.value++;
  }, 1000);
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState === "visible") tick.value++;
  });
  addEventListener("online", () => live.retry());
}

export const sizes = (): { jobs: number; placements: number } => ({ jobs: jobs.size, placements: placements.size });
