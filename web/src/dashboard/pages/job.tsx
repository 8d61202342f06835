// One job: how fast it runs, what sharing costs it, what was decided about it and why, what it prints.

import { useEffect, useState } from "preact/hooks";
import { bytes, dur, num, pct } from "../../charts/format.ts";
import type { Decisions, Explanation, JobAnswer, JobInfo, JobSeries, LatencyInfo } from "../../api/types.ts";
import { ApiError, post, remove } from "../api.ts";
import { useAsk } from "../parts/ask.ts";
import { Confirm } from "../parts/dialog.tsx";
import { JobLinks, Rate, State } from "../parts/job_parts.tsx";
import { LineChart } from "../parts/line_chart.tsx";
import { LogTail } from "../parts/log.tsx";
import { changesOf, connection, isOver, now, sampled } from "../store.ts";
import { gpuNames, sayGpus, sayMs, sayStart, sayTime } from "../words.ts";

/** A number that grows when measurements have come in, at most every few seconds. */
function useMeasurements(id: number): number {
  const [at, setAt] = useState(0);
  const samples = sampled.value;
  useEffect(() => {
    if (samples.has(id)) setAt((before) => (Date.now() - before > 5000 ? Date.now() : before));
  }, [samples, id]);
  return at;
}

const percent = (part: number): string => pct(part, part < 1 && part > 0.99 ? 2 : part < 1 ? 1 : 0);

/** How much of a GPU a job may use, and what holds it to that. */
function sayBudget(share: number, { enforcement, share_promised: sure }: JobInfo): string {
  const cap = share < 1 ? `${pct(share, 0)} of each GPU (${enforcement === "none" ? "not enforced" : "by " + enforcement})` : "all of each GPU";
  return sure ? `${cap}, at least ${pct(sure, 0)}` : cap;
}

/** What it was promised beside others. */
function sayPromise(job: JobInfo): string {
  if (job.exclusive) return "no other tenant";
  const { promised_ms: limit, slo } = job.latency ?? {};
  const latency = limit ? `${sayPercentile(slo)} latency up to ${sayMs(limit)}` : null;
  const slowdown = job.max_slowdown ? "slow-down up to " + ratio(job.max_slowdown) : null;
  return [latency, slowdown].filter(Boolean).join(", ") || (job.latency ? "none" : "no limit of its slow-down");
}

/** Which requests a promise is about: `p99=100ms` is about 99 of 100. */
const sayPercentile = (slo: string | null | undefined): string => slo?.split("=")[0] ?? "";

/** What a service does against its promise. */
function serviceFigures({ p50_ms: p50, p99_ms: p99, rate_per_s: rate, requests, is_kept: isKept, kept }: LatencyInfo): [string, preact.ComponentChildren][] {
  const known = p50 !== null && p50 !== undefined && p99 !== null && p99 !== undefined;
  const state = isKept === false ? <span class="broken"> promise broken</span> : null;
  return [
    ["Latency", known ? <span key="latency">p50 {sayMs(p50)}, p99 {sayMs(p99)}{state}</span> : "nothing reported"],
    ["Promise kept", kept === null || kept === undefined ? "–" : `${percent(kept)} of the time`],
    ["Requests", num(requests) + (rate ? `, now ${num(rate, rate < 10 ? 1 : 0)} per second` : "")],
  ];
}

export function Job({ id }: { id: number }) {
  // Read again after every change of this job, and when the stream has been opened anew.
  const changes = `${changesOf(id)} ${connection.value}`;
  const { data, error } = useAsk<JobAnswer>(`/v1/jobs/${id}`, {}, changes);
  if (!data) return <section>{error ? <p role="alert">{error}</p> : <p class="soft">Reading job {id}…</p>}</section>;
  const { job } = data;
  return (
    <>
      <Head job={job} />
      <Figures job={job} />
      <Waits job={job} changes={changes} />
      <Series job={job} changes={changes} />
      <DecisionList job={job} changes={changes} />
      <LogTail job={job} key={job.id} />
      <Private job={job} />
    </>
  );
}

type Verb = "pause" | "resume" | "hold" | "release" | "cancel";

function verbs(job: JobInfo): Verb[] {
  if (!job.may_change || isOver(job.state) || job.state === "completing") return [];
  const found: Record<string, Verb[]> = { running: ["pause"], paused: ["resume"], pending: ["hold"], held: ["release"] };
  return [...(found[job.state] ?? []), "cancel"];
}

function Head({ job }: { job: JobInfo }) {
  const [error, setError] = useState<string | null>(null);
  const [asks, setAsks] = useState(false);
  const act = async (verb: Verb) => {
    setError(null);
    try {
      await (verb === "cancel" ? remove(`/v1/jobs/${job.id}`) : post(`/v1/jobs/${job.id}/${verb}`));
    } catch (failure) {
      setError(failure instanceof ApiError ? failure.message : String(failure));
    }
  };
  return (
    <section aria-labelledby="h-job">
      <div class="head">
        <h2 id="h-job">
          Job {job.id}: {job.name} <State state={job.state} />
        </h2>
        <div class="bar">
          {verbs(job).map((verb) => (
            <button
              // Pause becomes resume in its place, and keeps the focus.
              key={verb === "cancel" ? verb : "other"}
              type="button"
              class={"btn" + (verb === "cancel" ? " danger" : "")}
              onClick={() => (verb === "cancel" ? setAsks(true) : void act(verb))}
            >
              {verb[0].toUpperCase() + verb.slice(1)}
            </button>
          ))}
        </div>
      </div>
      {job.reason ? <p>{job.reason}</p> : null}
      {error ? <p role="alert">{error}</p> : null}
      {asks ? (
        <Confirm
          title={`Cancel job ${job.id}?`}
          text={`${job.name} is stopped and not started again.`}
          yes="Cancel the job"
          onAnswer={(confirmed) => {
            setAsks(false);
            if (confirmed) void act("cancel");
          }}
        />
      ) : null}
    </section>
  );
}

const ratio = (value: number | null | undefined): string => (value === null || value === undefined ? "–" : "×" + num(value, 2));

function Figures({ job }: { job: JobInfo }) {
  const latest = sampled.value.get(job.id);
  const runs = job.state === "running";
  const rate = latest && runs ? latest.rate : job.rate;
  const measured = latest && runs ? latest.rate_measured : job.rate_measured;
  const speed = latest?.steps_per_s ?? job.steps_per_s;
  const limit = job.gpu_memory_bytes;
  const memory = bytes(Math.max(job.memory_peak_bytes, latest?.memory_bytes ?? 0)) + (limit ? ` of ${bytes(limit)}` : "");
  const loss = latest?.scalars ?? {};
  const share = latest && runs ? latest.share : job.share;
  const latency = (runs && latest?.latency) || job.latency;
  const facts: [string, preact.ComponentChildren][] = [
    ["User", job.user],
    ["Class", job.class],
    ["GPUs", job.devices.length && !isOver(job.state) ? gpuNames(job.devices) : sayGpus(job.gpus)],
    ["Beside", <JobLinks key="beside" ids={latest && runs ? latest.beside : job.beside} />],
    ["Rate", <Rate key="rate" rate={rate} measured={measured} />],
    ["Steps per second alone", job.steps_per_s_alone ? num(job.steps_per_s_alone, 1) : "not measured"],
    ["Steps per second now", speed && runs ? num(speed, 1) : "–"],
    ["Slow-down predicted", ratio(job.slowdown_predicted)],
    ["Slow-down measured", ratio(measured && runs && rate && job.beside.length ? 1 / rate : job.slowdown_measured)],
    ["Memory peak", memory],
    ["Budget", sayBudget(share, job)],
    ["Sub-batches", num(job.sub_batches)],
    ["Done", job.estimate_s ? `${dur(job.done_s)} of about ${dur(job.estimate_s)}` : dur(job.done_s)],
    ["Ran", `${dur(job.run_s)}, ${dur(job.shared_s)} of it shared`],
    ["Limit", job.time_limit_s ? dur(job.time_limit_s) : "none"],
    ["Promise", sayPromise(job)],
    ...(latency ? serviceFigures(latency) : []),
    ["Submitted", sayTime(job.submit_time)],
    ["Started", sayTime(job.start_time)],
    ["Ended", sayTime(job.end_time)],
    ...(job.exit_code === null || job.exit_code === undefined ? [] : [["Exit code", String(job.exit_code)] as [string, string]]),
    ...Object.entries(loss).map(([name, value]): [string, string] => [name, String(Number(value.toPrecision(5)))]),
  ];
  return (
    <section aria-label="Figures">
      <dl class="figures">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

const sentence = (text: string): string => text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

function Waits({ job, changes }: { job: JobInfo; changes: string }) {
  const waits = job.state === "pending" || job.state === "held";
  const { data } = useAsk<Explanation>(waits ? `/v1/jobs/${job.id}/explain` : null, {}, changes);
  if (!waits || !data) return null;
  const at = now.peek();
  const range = data.start_in_s?.map((s) => at + s) as [number, number, number] | undefined;
  return (
    <section aria-labelledby="h-waits">
      <h2 id="h-waits">Why it waits</h2>
      <p>
        {data.waits ? sentence(data.waits) : "It is about to start."} It starts {sayStart(range, at)}
        {data.slowdown ? `, ${ratio(data.slowdown)} as slow as alone` : ""}.
      </p>
      {data.after.length ? (
        <p>
          Before it, these have to end or be stopped: <JobLinks ids={data.after} />
        </p>
      ) : null}
      {data.ahead.length ? (
        <p>
          These will probably start earlier: <JobLinks ids={data.ahead} />
        </p>
      ) : null}
      <ul class="reasons" tabIndex={0} aria-label="Why not on each GPU">
        {data.devices.slice(0, 64).map((device) => (
          <li key={device.device}>
            GPU {device.device}: {device.reason}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Series({ job, changes }: { job: JobInfo; changes: string }) {
  const measured = useMeasurements(job.id);
  const { data } = useAsk<JobSeries>(`/v1/jobs/${job.id}/series`, { points: 300 }, `${changes} ${measured}`);
  if (!data) return null;
  const [from, step] = [Date.parse(data.from) / 1000, data.step_s];
  const common = { from, step };
  const scalars = Object.entries(data.scalars).slice(0, 8);
  const unit = Math.max(...data.memory_bytes.map((b) => b ?? 0)) < 2 ** 30 ? { name: "MiB", bytes: 2 ** 20 } : { name: "GiB", bytes: 2 ** 30 };
  const isCapped = (data.share ?? []).some((share) => share !== null && share < 1);
  const promise = job.latency?.promised_ms;
  const limit = promise ? { label: `promised ${sayPercentile(job.latency?.slo)}`, value: promise } : null;
  return (
    <section aria-labelledby="h-series">
      <h2 id="h-series">Over time</h2>
      <div class="charts">
        <LineChart {...common} label="Rate" unit="Rate (1 is alone)" values={data.rate} say={(v) => num(v, 2)} />
        <LineChart {...common} label="Steps per second" unit="Steps per second" values={data.steps_per_s} say={(v) => num(v, 1)} colour={2} />
        <LineChart {...common} label="Memory" unit={`Memory (${unit.name})`} values={data.memory_bytes.map((b) => b && b / unit.bytes)} say={(v) => bytes(v * unit.bytes)} colour={4} />
        {data.p99_ms?.length ? (
          <LineChart {...common} label="p99 latency" unit="Latency (ms): p99, and p50 dashed" values={data.p99_ms} second={{ label: "p50 latency", values: data.p50_ms ?? [] }} limit={limit} say={sayMs} colour={1} />
        ) : null}
        {isCapped ? <LineChart {...common} label="Budget" unit="Budget (% of each GPU)" values={(data.share ?? []).map((share) => share && share * 100)} say={(v) => pct(v / 100, 0)} colour={7} /> : null}
        {scalars.map(([name, values]) => (
          <LineChart key={name} {...common} label={name} unit={name} values={values} say={(v) => String(Number(v.toPrecision(5)))} fromZero={false} colour={3} />
        ))}
      </div>
    </section>
  );
}

function DecisionList({ job, changes }: { job: JobInfo; changes: string }) {
  const { data } = useAsk<Decisions>(`/v1/jobs/${job.id}/decisions`, {}, changes);
  if (!data) return null;
  return (
    <section aria-labelledby="h-decisions">
      <h2 id="h-decisions">Decisions</h2>
      {data.decisions.length ? (
        <ol class="decisions" tabIndex={0} aria-label="Decisions, the latest first">
          {data.decisions.toReversed().map((decision) => (
            <li key={decision.time + decision.action}>
              <time dateTime={decision.time}>{sayTime(decision.time)}</time> <b>{decision.action}</b>
              {decision.devices.length ? ` on ${gpuNames(decision.devices)}` : ""}: {decision.reason}
            </li>
          ))}
        </ol>
      ) : (
        <p class="soft">Nothing was decided about it yet.</p>
      )}
    </section>
  );
}

function Private({ job }: { job: JobInfo }) {
  const own = job.private;
  if (!own) return null;
  return (
    <section aria-labelledby="h-command">
      <h2 id="h-command">Command</h2>
      <pre class="command">{own.command.join(" ")}</pre>
      <dl class="figures">
        <div>
          <dt>Directory</dt>
          <dd>{own.dir}</dd>
        </div>
        <div>
          <dt>Output</dt>
          <dd>{own.stdout}</dd>
        </div>
        <div>
          <dt>Errors</dt>
          <dd>{own.stderr}</dd>
        </div>
      </dl>
    </section>
  );
}
