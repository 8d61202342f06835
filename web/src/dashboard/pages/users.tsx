// Usage by user, and reservations.

import { useState } from "preact/hooks";
import type { ReservationList, Usage } from "../../api/types.ts";
import { num, pct } from "../../charts/format.ts";
import { useAsk } from "../parts/ask.ts";
import { connection, onDevices, recentlyOver, startOfDay, waiting } from "../store.ts";
import { gpuNames, sayHours, sayTime } from "../words.ts";

const DAYS: readonly [string, number | null][] = [
  ["today", 0],
  ["the last 7 days", 7],
  ["the last 30 days", 30],
  ["ever", null],
];

export function Users() {
  return (
    <>
      <UsageByUser />
      <Reservations />
    </>
  );
}

function Reservations() {
  const { data } = useAsk<ReservationList>("/v1/reservations", {}, connection.value);
  if (!data) return null;
  return (
    <section aria-labelledby="h-reservations">
      <h2 id="h-reservations">Reservations</h2>
      {data.reservations.length ? (
        <div class="scroll" tabIndex={0} role="group" aria-label="Reservations">
          <table>
            <thead>
              <tr>
                {["Number", "GPUs", "From", "Until", "For", "Why", "Made by"].map((name) => (
                  <th key={name} scope="col">
                    {name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {data.reservations.map((one) => (
                <tr key={one.id}>
                  <th scope="row">{one.id}</th>
                  <td>{gpuNames(one.devices)}</td>
                  <td>{sayTime(one.start)}</td>
                  <td>{sayTime(one.end)}</td>
                  <td>{one.users.join(", ") || "maintenance"}</td>
                  <td class="why">{one.reason || "–"}</td>
                  <td>{one.by}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <p class="soft">No GPU is reserved.</p>
      )}
    </section>
  );
}

function UsageByUser() {
  const [choice, setChoice] = useState(0);
  const days = DAYS[choice][1];
  const query: Record<string, number> = days === null ? {} : { since: startOfDay() - days * 86_400 };
  const { data, error } = useAsk<Usage>("/v1/usage", query, `${recentlyOver.value[0]?.id} ${connection.value}`);
  const count = (user: string, jobs: readonly { user: string }[]) => jobs.filter((job) => job.user === user).length;
  const all = data?.users.reduce((sum, user) => sum + user.gpu_hours, 0) ?? 0;
  return (
    <section aria-labelledby="h-users">
      <div class="head">
        <h2 id="h-users">Users</h2>
        <div class="bar">
          <label>
            Usage{" "}
            <select value={choice} onChange={(event) => setChoice(Number(event.currentTarget.value))}>
              {DAYS.map(([name], i) => (
                <option key={name} value={i}>
                  {name}
                </option>
              ))}
            </select>
          </label>
        </div>
      </div>
      {error ? <p role="alert">{error}</p> : null}
      {data ? (
        <div class="scroll" tabIndex={0} role="group" aria-label="Users">
          <table>
            <thead>
              <tr>
                {["User", "Running", "Pending", "Jobs", "GPU-hours", "Share of all", "Shared GPU-hours"].map((name, i) => (
                  <th key={name} scope="col" class={i ? "right" : undefined}>
                    {name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {data.users.map((user) => (
                <tr key={user.user}>
                  <th scope="row">{user.user}</th>
                  <td class="right">{num(count(user.user, onDevices.value))}</td>
                  <td class="right">{num(count(user.user, waiting.value))}</td>
                  <td class="right">{num(user.jobs)}</td>
                  <td class="right">{sayHours(user.gpu_hours)}</td>
                  <td class="right">{all > 0 ? pct(user.gpu_hours / all) : "–"}</td>
                  <td class="right">{sayHours(user.shared_gpu_hours)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <p class="soft">Reading…</p>
      )}
    </section>
  );
}
