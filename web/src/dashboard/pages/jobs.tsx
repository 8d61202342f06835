// All jobs, the latest first, a page at a time.

import { useEffect, useState } from "preact/hooks";
import type { JobLine, JobPage, JobState } from "../../api/types.ts";
import { dur } from "../../charts/format.ts";
import { useAsk } from "../parts/ask.ts";
import { State } from "../parts/job_parts.tsx";
import { BigTable } from "../parts/table.tsx";
import type { Column } from "../parts/table.tsx";
import { sayState, sayTime } from "../words.ts";
import { NAME_COLUMNS } from "./overview.tsx";

const PAGE = 100;
const STATES: readonly JobState[] = [
  "pending", "running", "paused", "held", "completed", "failed", "cancelled", "timeout", "oom", "unknown",
];

const COLUMNS: readonly Column<JobLine>[] = [
  ...NAME_COLUMNS,
  { name: "State", cell: (job) => <State state={job.state} /> },
  { name: "Class", cell: (job) => <span class="name">{job.class}</span> },
  { name: "Submitted", cell: (job) => sayTime(job.submit_time) },
  { name: "Ran", cell: (job) => dur(job.run_s), right: true },
  { name: "Shared", cell: (job) => dur(job.shared_s), right: true },
  { name: "Why", cell: (job) => job.reason ?? "–", class: "why" },
];

export function Jobs() {
  const [state, setState] = useState("");
  const [user, setUser] = useState("");
  /** Where the pages before this one began. */
  const [before, setBefore] = useState<readonly number[]>([]);
  useEffect(() => setBefore([]), [state, user]);
  const query: Record<string, string | number> = { order: "desc", limit: PAGE };
  if (state) query.state = state;
  if (user) query.user = user;
  const after = before[before.length - 1];
  if (after !== undefined) query.after = after;
  const { data, error } = useAsk<JobPage>("/v1/jobs", query, null);
  const next = data?.next_after ?? null;
  return (
    <section aria-labelledby="h-jobs">
      <div class="head">
        <h2 id="h-jobs">All jobs</h2>
        <div class="bar">
          <label>
            State{" "}
            <select value={state} onChange={(event) => setState(event.currentTarget.value)}>
              <option value="">any</option>
              {STATES.map((name) => (
                <option key={name} value={name}>
                  {sayState(name)}
                </option>
              ))}
            </select>
          </label>
          <label>
            User <input value={user} onChange={(event) => setUser(event.currentTarget.value.trim())} />
          </label>
        </div>
      </div>
      {error ? <p role="alert">{error}</p> : null}
      {data ? <BigTable label="All jobs" rows={data.jobs} columns={COLUMNS} keyOf={(job) => job.id} empty="There is no such job." /> : <p class="soft">Reading…</p>}
      <div class="bar">
        <button type="button" class="btn" disabled={!before.length} onClick={() => setBefore(before.slice(0, -1))}>
          Later jobs
        </button>
        <button type="button" class="btn" disabled={next === null} onClick={() => next !== null && setBefore([...before, next])}>
          Earlier jobs
        </button>
      </div>
    </section>
  );
}
