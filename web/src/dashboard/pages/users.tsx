// Usage, shares and limits by user, accounts, and reservations.

import { useState } from "preact/hooks";
import type { LimitsInfo, ReservationList, ShareInfo, SharesInfo, Usage } from "../../api/types.ts";
import { bytes, count, dur, num, pct } from "../../charts/format.ts";
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
  // The administrator's file is read when the daemon starts; nothing else changes it.
  const { data: shares } = useAsk<SharesInfo>("/v1/shares", {}, connection.value);
  return (
    <>
      <UsageByUser shares={shares} />
      {shares ? <Shares shares={shares} /> : null}
      <Reservations />
    </>
  );
}

/** What may be had at once, in words. */
export function sayLimits(limits: LimitsInfo, periodHours: number): string {
  const parts: [number | null | undefined, (value: number) => string][] = [
    [limits.gpus, (value) => count(value, "GPU")],
    [limits.jobs, (value) => count(value, "job")],
    [limits.memory_bytes, bytes],
    [limits.gpu_hours, (value) => `${num(value, value < 10 ? 1 : 0)} GPU-hours in ${dur(periodHours * 3600)}`],
    [limits.pending, (value) => `${num(value)} pending`],
  ];
  return parts.flatMap(([value, say]) => (value === null || value === undefined ? [] : [say(value)])).join(", ") || "none";
}

const hasLimits = (limits: LimitsInfo): boolean => Object.values(limits).some((value) => value !== null && value !== undefined);

/** The account, weight and limits of a user. */
export function shareOf(user: string, shares: SharesInfo): { account: ShareInfo | undefined; weight: number; limits: LimitsInfo } {
  const own = shares.users.find(({ name }) => name === user);
  return {
    account: shares.accounts.find(({ members }) => members.includes(user)),
    weight: own?.weight ?? 1,
    limits: own && hasLimits(own.limits) ? own.limits : shares.limits,
  };
}

function Shares({ shares }: { shares: SharesInfo }) {
  const { half_life_h: halfLife, accounts } = shares;
  return (
    <section aria-labelledby="h-shares">
      <h2 id="h-shares">Shares</h2>
      <p class="lead">
        {halfLife === null || halfLife === undefined
          ? "Users have no shares: the policy alone decides who goes first."
          : `GPUs are divided by weight; GPU time counts half after ${dur(halfLife * 3600)}.`}
      </p>
      {accounts.length ? (
        <div class="scroll" tabIndex={0} role="group" aria-label="Accounts">
          <table>
            <thead>
              <tr>
                <th scope="col">Account</th>
                <th scope="col" class="right">Weight</th>
                <th scope="col">Limits</th>
                <th scope="col">Users</th>
              </tr>
            </thead>
            <tbody>
              {accounts.map((account) => (
                <tr key={account.name}>
                  <th scope="row">{account.name}</th>
                  <td class="right">{num(account.weight)}</td>
                  <td>{sayLimits(account.limits, shares.period_h)}</td>
                  <td class="why" title={account.members.join(", ")}>{account.members.join(", ") || "–"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : null}
    </section>
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

function UsageByUser({ shares }: { shares: SharesInfo | null }) {
  const [choice, setChoice] = useState(0);
  const days = DAYS[choice][1];
  const query: Record<string, number> = days === null ? {} : { since: startOfDay() - days * 86_400 };
  const { data, error } = useAsk<Usage>("/v1/usage", query, `${recentlyOver.value[0]?.id} ${connection.value}`);
  const jobsOf = (user: string, jobs: readonly { user: string }[]) => jobs.filter((job) => job.user === user).length;
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
                {["User", "Running", "Pending", "Jobs", "GPU time", "Part of all", "Shared GPU time"].map((name, i) => (
                  <th key={name} scope="col" class={i ? "right" : undefined}>
                    {name}
                  </th>
                ))}
                <th scope="col">Account</th>
                <th scope="col" class="right">Weight</th>
                <th scope="col">Limits</th>
              </tr>
            </thead>
            <tbody>
              {data.users.map((user) => (
                <tr key={user.user}>
                  <th scope="row">{user.user}</th>
                  <td class="right">{num(jobsOf(user.user, onDevices.value))}</td>
                  <td class="right">{num(jobsOf(user.user, waiting.value))}</td>
                  <td class="right">{num(user.jobs)}</td>
                  <td class="right">{sayHours(user.gpu_hours)}</td>
                  <td class="right">{all > 0 ? pct(user.gpu_hours / all) : "–"}</td>
                  <td class="right">{sayHours(user.shared_gpu_hours)}</td>
                  <ShareCells user={user.user} shares={shares} />
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

function ShareCells({ user, shares }: { user: string; shares: SharesInfo | null }) {
  if (!shares) return <td colSpan={3} />;
  const { account, weight, limits } = shareOf(user, shares);
  // The users of an account divide its share.
  return (
    <>
      <td>{account?.name ?? "–"}</td>
      <td class="right">{account ? `${num(account.weight)} for ${count(account.members.length, "user")}` : num(weight)}</td>
      <td>{sayLimits(limits, shares.period_h)}</td>
    </>
  );
}
