// GPUs × time, live: the measured past, the present, and the forecast.

import { useEffect, useRef, useState } from "preact/hooks";
import { count, dur } from "../../charts/format.ts";
import { Gantt } from "../../charts/gantt.ts";
import type { GanttData } from "../../charts/gantt.ts";
import { RATE_UNKNOWN, rateColour } from "../../charts/palette.ts";
import { clockTicks } from "../../charts/scales.ts";
import type { DeviceInfo } from "../../api/types.ts";
import { onRedraw } from "../parts/chart.tsx";
import { Patch } from "../parts/job_parts.tsx";
import { jobLink } from "../router.ts";
import { forecastPlacements, segmentsOf } from "../stays.ts";
import type { GpuSegment, Placement } from "../stays.ts";
import { RANGES_S, devices, forecast, info, jobOf, level, now, placements, range, setLevel, setRange, staysVersion } from "../store.ts";
import { gpuNames, sayClock, sayRate, saySlowdown } from "../words.ts";

/** How far the forecast is shown, as a part of the past. */
const AHEAD = 0.5;

const nodeOf = (device: DeviceInfo): string => device.node ?? "";

const alone = (placement: Placement): boolean => placement.beside.length === 0;

/** Who is alone runs at full speed by definition; beside others only a measurement counts. */
function colourOf({ placement, isForecast, lanes }: GpuSegment): string {
  if (isForecast) return RATE_UNKNOWN;
  if (placement.measured) return rateColour(placement.rate);
  return alone(placement) && (lanes === 1 || level.value === "node") ? rateColour(1) : RATE_UNKNOWN;
}

function textOf({ placement, isForecast, lanes }: GpuSegment): string {
  const slowdown = !isForecast && (lanes > 1 || !alone(placement)) && placement.measured && placement.rate ? " " + saySlowdown(placement.rate) : "";
  return `${placement.job} ${placement.name}${slowdown}`;
}

function describe({ placement, isForecast, from, to, lanes, lane }: GpuSegment, row: readonly GpuSegment[]) {
  const overlaps = (o: GpuSegment) => o.key !== placement.job && o.from < to && o.to > from && o.isForecast === isForecast;
  const others = level.value === "node" ? [...placement.beside] : [...new Set(row.filter(overlaps).map((o) => o.key))];
  const span = `${sayClock(placement.from)} to ${placement.to === null ? "now" : sayClock(placement.to)} (${dur(to - from)})`;
  const rate = placement.measured
    ? `measured rate ${sayRate(placement.rate)}, slow-down ${saySlowdown(placement.rate)}`
    : placement.rate === null ? "rate not measured" : `predicted rate ${sayRate(placement.rate)}`;
  const rows = [
    [placement.user && "user " + placement.user, placement.class && "class " + placement.class].filter(Boolean).join(", "),
    (isForecast ? "forecast: " : "") + span,
    ...(isForecast ? [] : [rate]),
    level.value === "node" ? gpuNames(placement.devices) : "",
    others.length ? `${level.value === "node" ? "" : `lane ${lane + 1} of ${lanes}, `}beside job ${others.slice(0, 4).join(", ")}` : isForecast && level.value === "node" ? "" : "alone on this GPU",
    "Enter or click opens the job",
  ];
  return { head: `job ${placement.job} ${placement.name}`, rows: rows.filter(Boolean) };
}

const nameOf = (id: number) => {
  const job = jobOf(id);
  return { name: job?.name ?? "", user: job?.user ?? "", class: job?.class ?? "" };
};

/** One row for each GPU, grouped by node, or one for each node. */
export function rowsOf(all: readonly DeviceInfo[], by: "gpu" | "node") {
  const nodes = [...new Set(all.map(nodeOf))];
  if (by === "node") {
    const rows = nodes.map((node) => ({ label: node || "this machine", group: node }));
    return { rows, rowOf: new Map(all.map((device) => [device.index, nodes.indexOf(nodeOf(device))])) };
  }
  // The GPUs of a node stand together and are counted from 0.
  const sorted = nodes.flatMap((node) => all.filter((device) => nodeOf(device) === node));
  const counted = new Map<string, number>();
  const rows = sorted.map((device) => {
    const node = nodeOf(device);
    const at = counted.get(node) ?? 0;
    counted.set(node, at + 1);
    return { label: nodes.length > 1 ? `${node} ${at}` : "GPU " + device.index, group: node };
  });
  return { rows, rowOf: new Map(sorted.map((device, row) => [device.index, row])) };
}

function dataOf(): GanttData<GpuSegment> {
  const all = devices.value;
  const at = now.value;
  const { rows, rowOf } = rowsOf(all, level.value);
  const prediction = forecast.value;
  const ahead = prediction ? forecastPlacements(prediction.placements, Date.parse(prediction.time) / 1000, nameOf) : [];
  void staysVersion.value;
  const segments = segmentsOf(placements.list(), ahead, rowOf, at);
  const present = placements.current();
  const shared = present.filter((placement) => placement.beside.length > 0).length;
  const extent = [at - range.value, at + range.value * AHEAD] as const;
  return {
    rows,
    segments,
    extent,
    now: at,
    caption: level.value === "node" ? "Node" : undefined,
    title: "hatched: forecast",
    axis: "Time",
    empty: "no tenants in this window",
    label: (from, to) =>
      `GPUs over time, from ${sayClock(from)} to ${sayClock(to)}: now ${count(present.length, "tenant")} on ${count(all.length, "GPU")}, ${count(shared, "of them co-located", "of them co-located")}. Arrow keys go from tenant to tenant, Home and End to the ends of a row, Enter opens the job.`,
  };
}

const sayRange = (seconds: number): string => dur(seconds);

export function Gpus() {
  const host = useRef<HTMLDivElement>(null);
  const gantt = useRef<Gantt<GpuSegment> | null>(null);
  const [tall, setTall] = useState(false);
  useEffect(() => {
    const node = host.current;
    if (!node) return undefined;
    const chart = new Gantt<GpuSegment>(
      node,
      {
        colour: colourOf,
        hatch: (segment) => (segment.isForecast ? "forecast" : "none"),
        text: textOf,
        describe,
        ticks: clockTicks,
        open: (segment) => {
          location.hash = jobLink(segment.key);
        },
      },
      dataOf(),
    );
    chart.draw();
    gantt.current = chart;
    const stop = onRedraw(node, () => chart.draw());
    return () => {
      stop();
      chart.destroy();
    };
  }, []);
  const data = dataOf();
  const nodes = new Set(devices.value.map(nodeOf)).size;
  useEffect(() => {
    gantt.current?.set(data);
  }, [data]);
  const buttons: [string, string, () => void][] = [
    ["Earlier", "◀", () => gantt.current?.pan(-0.4)],
    ["Later", "▶", () => gantt.current?.pan(0.4)],
    ["Zoom in", "+", () => gantt.current?.zoom(1.8)],
    ["Zoom out", "−", () => gantt.current?.zoom(1 / 1.8)],
  ];
  return (
    <section aria-labelledby="h-gpus">
      <div class="head">
        <h2 id="h-gpus">
          GPUs{info.value?.partition ? <span class="soft"> of partition {info.value.partition}</span> : null}
        </h2>
        <div class="bar">
          {nodes > 1 ? (
            <label>
              Rows{" "}
              <select value={level.value} onChange={(event) => setLevel(event.currentTarget.value === "node" ? "node" : "gpu")}>
                <option value="gpu">GPUs</option>
                <option value="node">nodes</option>
              </select>
            </label>
          ) : null}
          <label>
            Last{" "}
            <select value={range.value} onChange={(event) => setRange(Number(event.currentTarget.value))}>
              {RANGES_S.map((seconds) => (
                <option key={seconds} value={seconds}>
                  {sayRange(seconds)}
                </option>
              ))}
            </select>
          </label>
          <span class="group" role="group" aria-label="Zoom and move in time">
            {buttons.map(([label, sign, act]) => (
              <button key={label} type="button" class="btn" aria-label={label} onClick={act}>
                {sign}
              </button>
            ))}
            <button type="button" class="btn" onClick={() => gantt.current?.reset()}>
              Follow
            </button>
            <button
              type="button"
              class="btn"
              aria-pressed={tall}
              onClick={() => {
                setTall(!tall);
                gantt.current?.setTall(!tall);
              }}
            >
              Tall rows
            </button>
          </span>
        </div>
      </div>
      <div class="card gpus">
        <div class="plot" ref={host} />
      </div>
      <Key />
    </section>
  );
}

function Key() {
  const rates: [string, number][] = [
    ["0.4 or slower", 0.4],
    ["0.6", 0.6],
    ["0.8", 0.8],
    ["1, full speed", 1],
    ["1.1 or faster", 1.1],
  ];
  return (
    <p class="legend">
      <span class="soft">Measured rate, speed relative to running alone:</span>
      {rates.map(([text, rate]) => (
        <span class="key" key={text}>
          <Patch colour={rateColour(rate)} />
          {text}
        </span>
      ))}
      <span class="key">
        <Patch colour={RATE_UNKNOWN} />
        not measured
      </span>
    </p>
  );
}
