// What happens now: GPUs over time, the queue, what sharing gained, the tenants.

import { bytes, count, dur, num, pct } from "../../charts/format.ts";
import type { DeviceInfo, JobLine } from "../../api/types.ts";
import { JobLinks, Meter, Rate, State } from "../parts/job_parts.tsx";
import { BigTable } from "../parts/table.tsx";
import type { Column } from "../parts/table.tsx";
import { jobLink } from "../router.ts";
import { counts, devices, info, now, onDevices, queueIsCut, recentlyOver, savings, startRanges, upSeconds, waitReasons, waiting } from "../store.ts";
import { gpuNames, sayGpus, sayHours, saySlowdown, sayStart, sayTime, sayUp } from "../words.ts";
import { Gpus } from "./gpus.tsx";

export function Overview() {
  return (
    <>
      <Summary />
      <Gpus />
      <Queue />
      <Tenants />
      <div class="columns">
        <DeviceTable />
        <Recent />
      </div>
    </>
  );
}

function Summary() {
  const about = info.value;
  const { running, paused, pending, held } = counts.value;
  const gain = savings.value;
  const facts: [string, string, string][] = [
    ["Policy", about?.policy.split(":")[0] ?? "–", about ? [...about.policy.split(":").slice(1), `up ${sayUp(upSeconds.value)}`].join(" · ") : ""],
    ["Running", num(running), paused ? `${num(paused)} paused` : `on ${count(devices.value.length, "GPU")}`],
    ["Pending", num(pending) + andMore(), held ? `${num(held)} held` : ""],
    ["GPU time gained today", gain ? sayHours(gain.gpu_hours) : "–", gain ? `${sayHours(gain.shared_gpu_hours)} shared` : ""],
    ["Waiting saved today", gain ? sayHours(gain.wait_saved_h) : "–", gain ? `cost ${sayHours(gain.slowdown_cost_h)} of slow-down` : ""],
  ];
  return (
    <section aria-label="Summary">
      <dl class="facts">
        {facts.map(([name, value, more]) => (
          <div key={name} class={name.endsWith("today") ? "gain" : undefined}>
            <dt>{name}</dt>
            <dd>{value}</dd>
            <dd class="soft">{more}</dd>
          </div>
        ))}
      </dl>
      {gain ? (
        <details class="method">
          <summary>How this is measured</summary>
          <p>
            {gain.method} {pct(gain.measured_share, 0)} of the shared time was measured; {count(gain.jobs_shared, "job")} shared.
          </p>
        </details>
      ) : null}
    </section>
  );
}

/** After a number of jobs that wait. */
const andMore = (): string => (queueIsCut.value ? "+" : "");

const link = (job: JobLine) => <a href={jobLink(job.id)}>{job.id}</a>;
const name = (job: JobLine) => (
  <span class="name" title={job.name}>
    {job.name}
  </span>
);

export const NAME_COLUMNS: readonly Column<JobLine>[] = [
  { name: "Job", cell: link, right: true },
  { name: "Name", cell: name },
  { name: "User", cell: (job) => <span class="name">{job.user}</span>, wide: true },
];

const CLASS: Column<JobLine> = { name: "Class", cell: (job) => <span class="name">{job.class}</span>, wide: true };

function Queue() {
  const ranges = startRanges.value;
  const reasons = waitReasons.value;
  const at = now.value;
  const columns: Column<JobLine>[] = [
    ...NAME_COLUMNS,
    CLASS,
    { name: "GPUs", cell: (job) => num(job.gpus, Number.isInteger(job.gpus) ? 0 : 2), right: true, wide: true },
    { name: "Starts", cell: (job) => (job.state === "held" ? "when released" : sayStart(ranges.get(job.id), at)) },
    { name: "Why", cell: (job) => (job.state === "held" ? "held" : (reasons.get(job.id) ?? job.reason ?? "–")), class: "why" },
    { name: "Waits", cell: (job) => dur(Math.max(0, at - Date.parse(job.submit_time) / 1000)), right: true },
  ];
  const rows = waiting.value;
  return (
    <section aria-labelledby="h-queue">
      <h2 id="h-queue">Queue{rows.length ? ` (${num(rows.length)}${andMore()})` : ""}</h2>
      {queueIsCut.value ? (
        <p class="soft">
          More jobs wait than a page holds; <a href="#/jobs">All jobs</a> has the others.
        </p>
      ) : null}
      <BigTable label="Queue" rows={rows} columns={columns} keyOf={(job) => job.id} empty="No job waits." />
    </section>
  );
}

const TENANTS: readonly Column<JobLine>[] = [
  ...NAME_COLUMNS,
  { name: "State", cell: (job) => <State state={job.state} /> },
  { name: "GPUs", cell: (job) => gpuNames(job.devices) },
  { name: "Beside", cell: (job) => <JobLinks ids={job.beside} /> },
  { name: "Rate", cell: (job) => <Rate rate={job.rate} measured={job.rate_measured} /> },
  { name: "Slow-down", cell: (job) => (job.beside.length ? saySlowdown(job.rate) : "–"), right: true },
];

function Tenants() {
  return (
    <section aria-labelledby="h-tenants">
      <h2 id="h-tenants">Tenants</h2>
      <BigTable label="Tenants" rows={onDevices.value} columns={TENANTS} keyOf={(job) => job.id} empty="Nothing runs." />
    </section>
  );
}

const NODE: Column<DeviceInfo> = { name: "Node", cell: (device) => <span class="name">{device.node}</span> };

const deviceColumns: readonly Column<DeviceInfo>[] = [
  { name: "GPU", cell: (device) => device.index, right: true },
  { name: "Name", cell: (device) => <span class="name">{device.name}</span>, wide: true },
  { name: "State", cell: (device) => <span class={"state " + (device.state === "up" ? "running" : "held")}>{device.state}</span> },
  {
    name: "Memory",
    cell: ({ memory_used_bytes: used, memory_bytes: all }) => (
      <>
        {used === null || used === undefined ? bytes(all) : `${bytes(used)} of ${bytes(all)}`}
        <Meter share={all > 0 ? (used ?? 0) / all : 0} />
      </>
    ),
    right: true,
  },
  { name: "Busy", cell: ({ utilization }) => (
      <>
        {utilization === null || utilization === undefined ? "–" : pct(utilization, 0)}
        <Meter share={utilization ?? 0} />
      </>
    ), right: true },
  { name: "Jobs", cell: (device) => <JobLinks ids={device.jobs} /> },
  {
    name: "Throughput",
    cell: ({ normalised_throughput: sum, measured }) => (sum === null || sum === undefined ? "–" : num(sum, 2) + (measured ? "" : " predicted")),
    right: true,
  },
];

function DeviceTable() {
  // In a cluster a GPU is found by its node.
  const columns = devices.value.some((device) => device.node) ? [deviceColumns[0], NODE, ...deviceColumns.slice(1)] : deviceColumns;
  return (
    <section aria-labelledby="h-devices">
      <h2 id="h-devices">GPUs now</h2>
      <BigTable label="GPUs now" rows={devices.value} columns={columns} keyOf={(device) => device.index} empty="There are no GPUs." />
    </section>
  );
}

const OVER: readonly Column<JobLine>[] = [
  ...NAME_COLUMNS,
  { name: "State", cell: (job) => <State state={job.state} /> },
  { name: "Why", cell: (job) => job.reason ?? "–", class: "why" },
  { name: "GPUs", cell: (job) => sayGpus(job.gpus) },
  { name: "Ended", cell: (job) => sayTime(job.end_time) },
];

function Recent() {
  const rows = recentlyOver.value.slice(0, 20);
  return (
    <section aria-labelledby="h-recent">
      <h2 id="h-recent">Just ended</h2>
      <BigTable label="Just ended" rows={rows} columns={OVER} keyOf={(job) => job.id} empty="No job has ended yet." />
      <p>
        <a href="#/jobs">All jobs</a>
      </p>
    </section>
  );
}

