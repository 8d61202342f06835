// Placements over time, and the lanes in which the Gantt chart shows them.

import type { Segment } from "../charts/gantt.ts";
import type { ForecastPlacement, PlacementInfo } from "../api/types.ts";

export interface Placement {
  job: number;
  name: string;
  user: string;
  class: string;
  devices: readonly number[];
  /** Seconds since 1970. */
  from: number;
  /** Absent while it lasts. */
  to: number | null;
  rate: number | null;
  measured: boolean;
  beside: readonly number[];
}

export interface GpuSegment extends Segment {
  placement: Placement;
  isForecast: boolean;
}

const seconds = (iso: string): number => Date.parse(iso) / 1000;

export const placementOf = (stay: PlacementInfo): Placement => ({
  job: stay.job,
  name: stay.name,
  user: stay.user,
  class: stay.class,
  devices: stay.devices,
  from: seconds(stay.from),
  to: stay.to ? seconds(stay.to) : null,
  rate: stay.rate ?? null,
  measured: stay.rate_measured,
  beside: stay.beside,
});

/** Placements by sequence number, no more than can be drawn. */
export class Placements {
  private readonly stays = new Map<number, Placement>();
  /** Those that last, so that a sample finds them at once. */
  private readonly open = new Map<number, Set<number>>();

  constructor(
    private readonly most: number,
    private readonly keepSeconds: number,
  ) {}

  get size(): number {
    return this.stays.size;
  }

  clear(): void {
    this.stays.clear();
    this.open.clear();
  }

  put(stay: PlacementInfo): void {
    const placement = placementOf(stay);
    this.stays.set(stay.seq, placement);
    const own = this.open.get(stay.job) ?? new Set<number>();
    if (placement.to === null) own.add(stay.seq);
    else own.delete(stay.seq);
    if (own.size) this.open.set(stay.job, own);
    else this.open.delete(stay.job);
  }

  /** The rate of a job's present placement was measured anew. */
  setRate(job: number, rate: number | null, measured: boolean): void {
    for (const seq of this.open.get(job) ?? []) {
      const placement = this.stays.get(seq);
      if (placement) this.stays.set(seq, { ...placement, rate, measured });
    }
  }

  /** Lets go of what is too old, and of the oldest if there are still too many. */
  prune(now: number): void {
    for (const [seq, { to }] of this.stays) if (to !== null && to < now - this.keepSeconds) this.stays.delete(seq);
    let excess = this.stays.size - this.most;
    for (const [seq, { to }] of this.stays) {
      if (excess <= 0) break;
      if (to === null) continue;
      this.stays.delete(seq);
      excess--;
    }
  }

  list(): Placement[] {
    return [...this.stays.values()];
  }

  current(): Placement[] {
    return [...this.open.values()].flatMap((seqs) => [...seqs].flatMap((seq) => this.stays.get(seq) ?? []));
  }
}

interface Interval {
  placement: Placement;
  from: number;
  to: number;
  isForecast: boolean;
}

/** Cuts the placements on each GPU where tenants come and go, so that every piece knows its lane. */
export function segmentsOf(placements: readonly Placement[], forecast: readonly Placement[], rowOf: ReadonlyMap<number, number>, now: number): GpuSegment[] {
  const rows = new Map<number, Interval[]>();
  const add = (placement: Placement, isForecast: boolean) => {
    const from = isForecast ? Math.max(placement.from, now) : placement.from;
    const to = placement.to ?? now;
    if (!(to > from)) return;
    // Several GPUs of a gang may be in one row, which is a node then.
    for (const row of new Set(placement.devices.map((device) => rowOf.get(device)))) {
      if (row === undefined) continue;
      const list = rows.get(row) ?? [];
      list.push({ placement, from, to, isForecast });
      rows.set(row, list);
    }
  };
  for (const placement of placements) add(placement, false);
  for (const placement of forecast) add(placement, true);
  const segments: GpuSegment[] = [];
  for (const [row, intervals] of rows) cut(row, intervals, segments);
  return segments;
}

interface Piece {
  interval: Interval;
  from: number;
  lane: number;
  lanes: number;
}

function cut(row: number, intervals: Interval[], into: GpuSegment[]): void {
  const starts = [...intervals].sort((a, b) => a.from - b.from);
  const times = [...new Set(intervals.flatMap(({ from, to }) => [from, to]))].sort((a, b) => a - b);
  let open = new Map<Interval, Piece>();
  let next = 0;
  const close = ({ interval, from, lane, lanes }: Piece, to: number) => {
    const { placement, isForecast } = interval;
    into.push({ row, from, to, lane, lanes, key: placement.job, placement, isForecast });
  };
  for (const time of times) {
    const present = [...open.keys()].filter((interval) => interval.to > time);
    for (; next < starts.length && starts[next].from <= time; next++) if (starts[next].to > time) present.push(starts[next]);
    // A tenant keeps its place among the others: by the time at which it came.
    present.sort((a, b) => a.placement.from - b.placement.from || a.placement.job - b.placement.job);
    const after = new Map<Interval, Piece>();
    present.forEach((interval, lane) => {
      const before = open.get(interval);
      const same = before && before.lane === lane && before.lanes === present.length;
      after.set(interval, same ? before : { interval, from: time, lane, lanes: present.length });
    });
    for (const [interval, piece] of open) if (after.get(interval) !== piece) close(piece, time);
    open = after;
  }
  for (const piece of open.values()) close(piece, piece.interval.to);
}

/** Forecast placements with the names of their jobs. */
export function forecastPlacements(
  stays: readonly ForecastPlacement[],
  at: number,
  nameOf: (job: number) => { name: string; user: string; class: string },
): Placement[] {
  return stays.map(({ job, devices, from_s, to_s }) => ({
    job,
    ...nameOf(job),
    devices,
    from: at + from_s,
    to: at + to_s,
    rate: null,
    measured: false,
    beside: [],
  }));
}
