// The JSON of the interface, by the names of docs/openapi.json.

import type { components } from "./schema.ts";

type Schemas = components["schemas"];

export type ClassInfo = Schemas["ClassInfo"];
export type Classes = Schemas["Classes"];
export type DaemonInfo = Schemas["DaemonInfo"];
export type Decisions = Schemas["Decisions"];
export type DeviceInfo = Schemas["DeviceInfo"];
export type Devices = Schemas["Devices"];
export type ErrorAnswer = Schemas["ErrorAnswer"];
export type Explanation = Schemas["Explanation"];
export type ForecastPlacement = Schemas["ForecastPlacement"];
export type Health = Schemas["Health"];
export type JobAnswer = Schemas["JobAnswer"];
export type JobChange = Schemas["JobChange"];
export type JobInfo = Schemas["JobInfo"];
export type JobLine = Schemas["JobLine"];
export type JobPage = Schemas["JobPage"];
export type JobSeries = Schemas["JobSeries"];
export type JobState = Schemas["JobState"];
export type LatencyInfo = Schemas["LatencyInfo"];
export type LogPart = Schemas["LogPart"];
export type MachineSeries = Schemas["MachineSeries"];
export type PlacementInfo = Schemas["PlacementInfo"];
export type QueueForecast = Schemas["QueueForecast"];
export type ReservationList = Schemas["ReservationList"];
export type Sample = Schemas["Sample"];
export type SampleJob = Schemas["SampleJob"];
export type Savings = Schemas["Savings"];
export type ShareInfo = Schemas["ShareInfo"];
export type SharesInfo = Schemas["SharesInfo"];
export type LimitsInfo = Schemas["LimitsInfo"];
export type Timeline = Schemas["Timeline"];
export type Usage = Schemas["Usage"];
export type WhatIfAnswer = Schemas["WhatIfAnswer"];
export type WhatIfBody = Schemas["WhatIfBody"];
export type WhatIfJob = Schemas["WhatIfJob"];
