// Whether the daemon does its work, and how busy the machine was.

import type { Health as HealthAnswer, MachineSeries } from "../../api/types.ts";
import { dur, num, pct } from "../../charts/format.ts";
import { useAsk } from "../parts/ask.ts";
import { LineChart } from "../parts/line_chart.tsx";
import { connection, info, jobsVersion, range, sizes, upSeconds } from "../store.ts";
import { sayUp } from "../words.ts";

/** The mean over devices at each instant. */
function mean(lists: readonly (readonly (number | null)[])[]): (number | null)[] {
  const length = lists.reduce((most, list) => Math.max(most, list.length), 0);
  return Array.from({ length }, (_, i) => {
    const known = lists.map((list) => list[i]).filter((value) => value !== null && value !== undefined);
    return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
  });
}

export function Health() {
  // Asked again with every hundredth change: nothing here hurries.
  const again = `${connection.value} ${Math.floor(jobsVersion.value / 100)}`;
  const { data, error } = useAsk<HealthAnswer>("/v1/health", {}, again);
  const series = useAsk<MachineSeries>("/v1/series", { seconds: range.value, points: 300 }, again).data;
  const about = info.value;
  const kept = sizes();
  return (
    <>
      <section aria-labelledby="h-health">
        <h2 id="h-health">Health</h2>
        {error ? <p role="alert">{error}</p> : null}
        <ul class="checks">
          {(data?.checks ?? []).map((check) => (
            <li key={check.name} class={check.ok ? "ok" : "bad"}>
              <b>{check.name}</b>: {check.ok ? "good" : "not good"}. {check.text}
            </li>
          ))}
        </ul>
        {about ? (
          <dl class="figures">
            {(
              [
                ["Version", about.version],
                ["Policy", about.policy],
                ["Provider", about.provider],
                ["Up", sayUp(upSeconds.value)],
                ["Process", String(about.pid)],
                ["Control groups", about.cgroups ?? "–"],
                ["Plans rejected", num(about.plans_rejected)],
                ["Kept by this page", `${num(kept.jobs)} jobs, ${num(kept.placements)} placements`],
              ] as const
            ).map(([name, value]) => (
              <div key={name}>
                <dt>{name}</dt>
                <dd>{value}</dd>
              </div>
            ))}
          </dl>
        ) : null}
      </section>
      {series ? (
        <section aria-labelledby="h-machine">
          <h2 id="h-machine">Machine, the last {dur(range.value)}</h2>
          <div class="charts">
            <LineChart label="GPUs busy" unit="GPUs busy (%, mean)" from={Date.parse(series.from) / 1000} step={series.step_s} values={mean(series.devices.map((d) => d.utilization)).map((v) => (v === null ? null : v * 100))} say={(v) => pct(v / 100, 0)} />
            <LineChart label="Throughput" unit="Throughput per GPU (1 is one job alone)" from={Date.parse(series.from) / 1000} step={series.step_s} values={mean(series.devices.map((d) => d.throughput))} say={(v) => num(v, 2)} colour={2} />
            <LineChart label="Pending" unit="Pending jobs" from={Date.parse(series.from) / 1000} step={series.step_s} values={series.pending} say={(v) => num(v)} colour={1} />
            <LineChart label="Running" unit="Running jobs" from={Date.parse(series.from) / 1000} step={series.step_s} values={series.running} say={(v) => num(v)} colour={3} />
          </div>
        </section>
      ) : null}
    </>
  );
}
