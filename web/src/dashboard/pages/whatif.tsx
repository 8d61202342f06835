// What if: another policy, one more job, a drained GPU, one more GPU. The simulator runs the policy forward from now.

import { useState } from "preact/hooks";
import type { WhatIfAnswer, WhatIfBody, WhatIfJob } from "../../api/types.ts";
import { dur, num } from "../../charts/format.ts";
import { ApiError, post } from "../api.ts";
import { JobLink } from "../parts/job_parts.tsx";
import { BigTable } from "../parts/table.tsx";
import type { Column } from "../parts/table.tsx";
import { devices, info } from "../store.ts";

const signed = (seconds: number): string => (Math.abs(seconds) < 0.5 ? "no change" : (seconds > 0 ? "+" : "") + dur(Math.abs(seconds) < 10 ? Math.round(seconds) : seconds));

function change(before: number | null | undefined, after: number | null | undefined): string {
  if (before === null || before === undefined) return after === null || after === undefined ? "–" : "in " + dur(after);
  if (after === null || after === undefined) return "not foreseeable";
  return signed(after - before);
}

const COLUMNS: readonly Column<WhatIfJob>[] = [
  { name: "Job", cell: (job) => (job.id ? <JobLink id={job.id} name={job.name} /> : <b>{job.name || "the new job"}</b>) },
  { name: "User", cell: (job) => job.user },
  { name: "Starts now", cell: (job) => (job.start_before_s === null || job.start_before_s === undefined ? "–" : "in " + dur(job.start_before_s)), right: true },
  { name: "Start changes", cell: (job) => change(job.start_before_s, job.start_after_s), right: true },
  { name: "Ends now", cell: (job) => (job.end_before_s === null || job.end_before_s === undefined ? "–" : "in " + dur(job.end_before_s)), right: true },
  { name: "End changes", cell: (job) => change(job.end_before_s, job.end_after_s), right: true },
];

export function WhatIf() {
  const [policy, setPolicy] = useState("");
  const [drained, setDrained] = useState("");
  const [added, setAdded] = useState(0);
  const [withJob, setWithJob] = useState(false);
  const [jobClass, setJobClass] = useState("");
  const [gpus, setGpus] = useState(1);
  const [minutes, setMinutes] = useState(60);
  const [exclusive, setExclusive] = useState(false);
  const [answer, setAnswer] = useState<WhatIfAnswer | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);

  const body = (): WhatIfBody => {
    const asked: WhatIfBody = {};
    if (policy) asked.policy = policy;
    if (drained) asked.drain = [Number(drained)];
    if (added) asked.add_devices = added;
    if (withJob) {
      asked.job = { command: ["true"], dir: "/", name: "the new job", gpus, estimate_s: minutes * 60, exclusive };
      if (jobClass) asked.job.class = jobClass;
    }
    return asked;
  };
  const ask = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      setAnswer(await post<WhatIfAnswer>("/v1/what-if", body()));
    } catch (failure) {
      setError(failure instanceof ApiError ? failure.message : String(failure));
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <section aria-labelledby="h-what-if">
        <h2 id="h-what-if">What if</h2>
        <p class="lead">The simulator runs the policy forward from the present, with the durations that are expected, once as things are and once with the change.</p>
        <form class="form" onSubmit={(event) => void ask(event)}>
          <label>
            Policy
            <select value={policy} onChange={(event) => setPolicy(event.currentTarget.value)}>
              <option value="">as it is ({info.value?.policy ?? "…"})</option>
              {(info.value?.policies ?? []).map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </select>
          </label>
          <label>
            Drained GPU
            <select value={drained} onChange={(event) => setDrained(event.currentTarget.value)}>
              <option value="">none</option>
              {devices.value.map((device) => (
                <option key={device.index} value={device.index}>
                  GPU {device.index}
                  {device.node ? ` (${device.node})` : ""}
                </option>
              ))}
            </select>
          </label>
          <label>
            More GPUs
            <input type="number" min={0} max={64} value={added} onInput={(event) => setAdded(Number(event.currentTarget.value))} />
          </label>
          <label class="check">
            <input type="checkbox" checked={withJob} onChange={(event) => setWithJob(event.currentTarget.checked)} /> One more job
          </label>
          {withJob ? (
            <fieldset>
              <legend>The job</legend>
              <label>
                Class
                <input value={jobClass} onInput={(event) => setJobClass(event.currentTarget.value)} />
              </label>
              <label>
                GPUs
                <input type="number" min={0.1} step={0.1} value={gpus} onInput={(event) => setGpus(Number(event.currentTarget.value))} />
              </label>
              <label>
                Minutes alone
                <input type="number" min={1} value={minutes} onInput={(event) => setMinutes(Number(event.currentTarget.value))} />
              </label>
              <label class="check">
                <input type="checkbox" checked={exclusive} onChange={(event) => setExclusive(event.currentTarget.checked)} /> Exclusive
              </label>
            </fieldset>
          ) : null}
          <button type="submit" class="btn primary" disabled={busy}>
            {busy ? "Simulating…" : "Simulate"}
          </button>
        </form>
        {error ? <p role="alert">{error}</p> : null}
      </section>
      <div aria-live="polite">{answer ? <Answer answer={answer} /> : null}</div>
    </>
  );
}

function Answer({ answer }: { answer: WhatIfAnswer }) {
  const { before, after } = answer;
  const rows: [string, string, string, string][] = [
    ["Policy", answer.policy_before, answer.policy, ""],
    ["Mean waiting time", dur(before.mean_wait_s), dur(after.mean_wait_s), signed(after.mean_wait_s - before.mean_wait_s)],
    ["Mean time to the end", dur(before.mean_end_s), dur(after.mean_end_s), signed(after.mean_end_s - before.mean_end_s)],
    ["All done", dur(before.last_end_s), dur(after.last_end_s), signed(after.last_end_s - before.last_end_s)],
    ["Jobs that start", `${num(before.started)} of ${num(before.jobs)}`, `${num(after.started)} of ${num(after.jobs)}`, ""],
  ];
  const shift = (job: WhatIfJob) => Math.abs((job.end_after_s ?? 0) - (job.end_before_s ?? 0));
  const jobs = [...answer.jobs].sort((a, b) => Number(Boolean(a.id)) - Number(Boolean(b.id)) || shift(b) - shift(a));
  return (
    <section aria-labelledby="h-effect">
      <h2 id="h-effect">Effect</h2>
      <div class="scroll" tabIndex={0} role="group" aria-label="Effect on all">
        <table>
          <thead>
            <tr>
              <th scope="col">From now on</th>
              <th scope="col" class="right">As it is</th>
              <th scope="col" class="right">With the change</th>
              <th scope="col" class="right">Difference</th>
            </tr>
          </thead>
          <tbody>
            {rows.map(([name, ...values]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                {values.map((value, i) => (
                  // oxlint-disable-next-line react/no-array-index-key
                  <td key={i} class="right">{value}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <h2>Effect on each job</h2>
      <BigTable label="Effect on each job" rows={jobs} columns={COLUMNS} keyOf={(job) => job.id ?? "new"} empty="There are no jobs." />
      {answer.jobs_left_off ? <p class="soft">{num(answer.jobs_left_off)} jobs with smaller changes are left out.</p> : null}
    </section>
  );
}
