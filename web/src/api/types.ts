// The JSON of the interface, by the names of docs/openapi.json.

import type { components } from "./schema.ts";

type Schemas = components["schemas"];

export type JobState = Schemas["JobState"];
export type JobLine = Schemas["JobLine"];
export type JobPage = Schemas["JobPage"];
export type JobInfo = Schemas["JobInfo"] & { steps_per_s?: number | null; steps_per_s_alone?: number | null };
export interface JobAnswer { schema: number; job: JobInfo }
export type JobRequest = Schemas["JobRequest"];
export type Devices = Schemas["Devices"];
export type DeviceInfo = Schemas["DeviceInfo"];
export type PairInfo = Schemas["PairInfo"] & { uncertainty?: number | null; recent?: number[] };
export type ClassInfo = Omit<Schemas["ClassInfo"], "beside"> & { beside: Record<string, PairInfo> };
export interface Classes { schema: number; classes: ClassInfo[] }
export type Usage = Schemas["Usage"];
export type DaemonInfo = Schemas["DaemonInfo"];
export type Explanation = Schemas["Explanation"];
export type ErrorAnswer = Schemas["ErrorAnswer"];

export interface Stay {
  seq: number;
  job: number;
  name: string;
  user: string;
  class: string;
  devices: number[];
  from: string;
  to?: string | null;
  rate?: number | null;
  rate_measured: boolean;
  beside: number[];
}

export interface Timeline {
  schema: number;
  time: string;
  stays: Stay[];
  next_before?: number | null;
}

export interface ForecastJob {
  id: number;
  start_in_s?: [number, number, number] | null;
  end_in_s?: [number, number, number] | null;
}

export interface ForecastStay {
  job: number;
  devices: number[];
  from_s: number;
  to_s: number;
}

export interface QueueForecast {
  schema: number;
  time: string;
  policy: string;
  draws: number;
  jobs: ForecastJob[];
  stays: ForecastStay[];
}

export interface Savings {
  schema: number;
  since: string;
  gpu_hours: number;
  shared_gpu_hours: number;
  wait_saved_h: number;
  slowdown_cost_h: number;
  jobs_shared: number;
  measured_share: number;
  method: string;
}

export interface DeviceSeries {
  schema: number;
  from: string;
  step_s: number;
  devices: { index: number; utilization: (number | null)[]; memory_used_bytes: (number | null)[]; throughput: (number | null)[] }[];
  pending: (number | null)[];
  running: (number | null)[];
}

export interface JobSeries {
  schema: number;
  from: string;
  step_s: number;
  rate: (number | null)[];
  steps_per_s: (number | null)[];
  memory_bytes: (number | null)[];
  scalars: Record<string, (number | null)[]>;
}

export interface Decision {
  time: string;
  action: string;
  devices: number[];
  beside: number[];
  predicted_rate?: number | null;
  reason: string;
}

export interface Decisions {
  schema: number;
  decisions: Decision[];
}

export interface WhatIfBody {
  policy?: string | null;
  job?: JobRequest | null;
  drain?: number[];
  add_devices?: number;
}

export interface WhatIfTotals {
  jobs: number;
  started: number;
  mean_wait_s: number;
  mean_end_s: number;
  last_end_s: number;
  gpu_hours_shared: number;
}

export interface WhatIfJob {
  id?: number | null;
  name: string;
  user: string;
  start_before_s?: number | null;
  start_after_s?: number | null;
  end_before_s?: number | null;
  end_after_s?: number | null;
}

export interface WhatIfAnswer {
  schema: number;
  policy: string;
  policy_before: string;
  draws: number;
  before: WhatIfTotals;
  after: WhatIfTotals;
  jobs: WhatIfJob[];
  jobs_left_off: number;
}

export interface Health {
  schema: number;
  healthy: boolean;
  checks: { name: string; ok: boolean; text: string }[];
}

/** What the stream of events says about a job. */
export interface JobChange {
  seq: number;
  time: string;
  id: number;
  state: JobState;
  reason?: string | null;
  devices: number[];
  exit_code?: number | null;
  name?: string;
  user?: string;
  class?: string;
  gpus?: number;
  submit_time?: string;
  start_time?: string | null;
  end_time?: string | null;
}

export interface SampleJob {
  id: number;
  rate?: number | null;
  rate_measured: boolean;
  steps_per_s?: number | null;
  memory_bytes?: number | null;
  beside: number[];
  scalars: Record<string, number>;
}

export interface SampleDevice {
  index: number;
  memory_used_bytes?: number | null;
  utilization?: number | null;
  state: string;
  jobs: number[];
  normalised_throughput?: number | null;
  measured: boolean;
}

export interface Sample {
  time: string;
  jobs: SampleJob[];
  devices: SampleDevice[];
}
