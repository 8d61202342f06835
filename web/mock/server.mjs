// Serves dist/ and a synthetic daemon. For development and for tests of scale only; nothing of it is in the product.
// Usage: node mock/server.mjs [--port 4173] [--speed 1] [--gpus 64] [--history 100000] [--pending 2000]

import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { gzipSync } from "node:zlib";
import { World } from "./world.mjs";

const argument = (name, fallback) => {
  const at = process.argv.indexOf("--" + name);
  return at < 0 ? fallback : Number(process.argv[at + 1]);
};
const speed = argument("speed", 1);
const world = new World({ gpus: argument("gpus", 64), history: argument("history", 100_000), pending: argument("pending", 2000) });
setInterval(() => world.step(speed), 1000);

const CSP = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
const FILES = { "/": ["dashboard.html", "text/html; charset=utf-8"], "/dashboard.js": ["dashboard.js", "text/javascript"], "/dashboard.css": ["dashboard.css", "text/css"] };
const page = (name) => readFileSync(new URL("../dist/" + name, import.meta.url));

const iso = (seconds) => new Date(seconds * 1000).toISOString();
const points = (n, f) => Array.from({ length: n }, (_, i) => f(i / n));

function job(id) {
  const line = world.jobs.has(id) ? world.line(world.jobs.get(id)) : (world.over.find((one) => one.id === id) ?? (id <= world.history ? world.old(id) : null));
  if (!line) return null;
  const rate = line.rate ?? null;
  const own = { command: ["python", "train.py", "--lr", "<b>0.1</b>"], dir: "/home/ann/train", stdout: `/home/ann/train/tandem-${id}.out`, stderr: `/home/ann/train/tandem-${id}.out`, env: {} };
  return {
    ...line, private: line.user === "bob" ? undefined : own, may_change: line.user !== "bob", uid: 1000, pid: 4711, runs: 1, retried: 0, signal: null, share: 0.5, enforcement: "mps", sub_batches: 1,
    caps: ["report"], slowdown_predicted: rate && line.beside.length ? 1.2 : null, slowdown_measured: rate && line.beside.length ? 1 / rate : null,
    normalised_throughput: 1.4, done_s: 600, estimate_s: 3000, memory_peak_bytes: 6.2e9, gpu_memory_bytes: 8 * 2 ** 30, exclusive: false, max_slowdown: 1.5,
    time_limit_s: 7200, priority: 0, cpu_s: 10, dependency: null, steps_per_s: rate ? rate * 12 : null, steps_per_s_alone: 12,
  };
}

function explain(id) {
  const devices = world.devices().map((d) => ({ device: d.index, reason: d.jobs.length ? `job ${d.jobs.join(" and job ")} is there, as many as the policy allows` : "is drained" }));
  return { schema: 1, id, state: "pending", policy: "tandem", waits: "needs 1 device, 0 free", devices, ahead: [1, 2], after: [3], start_in_s: [240, 400, 560], end_in_s: null, beside: [], slowdown: 1.1, draws_started: 9, draws: 9 };
}

function jobSeries() {
  const scalars = { loss: points(300, (x) => 4 * Math.exp(-3 * x)) };
  return { schema: 1, from: iso(world.now - 3000), step_s: 10, rate: points(300, (x) => 0.8 + 0.1 * Math.sin(9 * x)), steps_per_s: points(300, (x) => 10 + Math.sin(9 * x)), memory_bytes: points(300, (x) => (x < 0.1 ? null : 6e9)), scalars };
}

function timeline(q) {
  const [since, limit, before] = [Number(q.get("since") ?? 0), Number(q.get("limit") ?? 5000), Number(q.get("before") ?? Infinity)];
  const all = world.stays.filter((stay) => stay.seq < before && (!stay.to || Date.parse(stay.to) / 1000 >= since)).toReversed();
  const stays = all.slice(0, limit);
  return { schema: 1, time: iso(world.now), placements: stays, ...(all.length > limit ? { next_before: stays[stays.length - 1].seq } : {}) };
}

function deviceSeries(q) {
  const [n, seconds] = [Number(q.get("points")), Number(q.get("seconds"))];
  const device = ({ index }) => ({ index, utilization: points(n, (x) => 0.7 + 0.2 * Math.sin(index + 7 * x)), memory_used_bytes: points(n, () => 3e10), throughput: points(n, (x) => 1.3 + 0.1 * Math.sin(index + 5 * x)) });
  return { schema: 1, from: iso(world.now - seconds), step_s: seconds / n, devices: world.devices().map(device), pending: points(n, (x) => Math.round(1000 + 900 * x)), running: points(n, () => 107) };
}

const SAVINGS = { schema: 1, gpu_hours: 12.4, shared_gpu_hours: 41.2, wait_saved_h: 38.1, slowdown_cost_h: 6.4, jobs_shared: 212, measured_share: 0.91, method: "GPU-hours gained are the work of co-located jobs in hours of running alone, less the hours of the GPUs on which they ran." };
const CHECKS = [{ name: "Scheduler", ok: true, text: "The last cycle took 3 ms." }, { name: "Store", ok: true, text: "41 MiB, no failures." }, { name: "Devices", ok: false, text: "GPU 63 is drained." }];
const SHARES = {
  schema: 1, half_life_h: 24, period_h: 720, limits: { gpus: 16 }, accounts: [{ name: "vision", weight: 3, members: ["ann", "chen"], limits: { gpus: 32, gpu_hours: 5000 } }],
  users: [{ name: "bob", weight: 2, members: [], limits: { jobs: 4, memory_bytes: 64 * 2 ** 30, pending: 100 } }],
};
const usage = (user, i) => ({ user, jobs: 400 - i * 50, gpu_hours: 312.5 - i * 60, shared_gpu_hours: 140 - i * 30 });
const DECISION = { action: "start", devices: [3], beside: [7], predicted_rate: 0.83, reason: "beside job 7: predicted rates 0.83 and 0.91, together 1.74" };

const ROUTES = [
  [/^\/v1\/info$/, () => ({ schema: 1, version: "0.1.0", policy: "tandem", policies: ["fifo", "sjf", "tandem"], provider: "nvidia", devices: world.gpus, cgroups: "/sys/fs/cgroup/tandem", up_s: world.now - world.started, uid: 0, pid: 4242, jobs: {}, plans_rejected: 0 })],
  [/^\/v1\/devices$/, () => ({ schema: 1, provider: "nvidia", devices: world.devices() })],
  [/^\/v1\/jobs$/, (_, q) => world.page({ state: q.get("state"), user: q.get("user"), after: Number(q.get("after") ?? 0), limit: Math.min(10_000, Number(q.get("limit") ?? 1000)), order: q.get("order") })],
  [/^\/v1\/jobs\/(\d+)$/, ([, id]) => (job(Number(id)) ? { schema: 1, job: job(Number(id)) } : null)],
  [/^\/v1\/jobs\/(\d+)\/explain$/, ([, id]) => explain(Number(id))],
  [/^\/v1\/jobs\/(\d+)\/series$/, jobSeries],
  [/^\/v1\/jobs\/(\d+)\/decisions$/, () => ({ schema: 1, decisions: [{ time: iso(world.now - 3000), ...DECISION }] })],
  [/^\/v1\/classes$/, () => world.classes()],
  [/^\/v1\/reservations$/, () => ({ schema: 1, reservations: [{ id: 1, devices: [0, 1], closes: iso(world.now), start: iso(world.now + 3600), end: iso(world.now + 7200), users: ["ann"], reason: "paper deadline", by: "root" }] })],
  [/^\/v1\/shares$/, () => SHARES],
  [/^\/v1\/usage$/, () => ({ schema: 1, users: ["ann", "bob", "chen", "</script><b>mallory</b>"].map(usage) })],
  [/^\/v1\/timeline$/, (_, q) => timeline(q)],
  [/^\/v1\/forecast$/, () => world.forecast()],
  [/^\/v1\/savings$/, () => ({ since: iso(world.now - 50_000), ...SAVINGS })],
  [/^\/v1\/series$/, (_, q) => deviceSeries(q)],
  [/^\/v1\/health$/, () => ({ schema: 1, healthy: true, checks: CHECKS })],
];

const ACTIONS = { pause: "paused", resume: "running", hold: "held", release: "pending" };

async function change(path, method, request) {
  const found = path.match(/^\/v1\/jobs\/(\d+)(?:\/(\w+))?$/);
  if (found) {
    const one = world.jobs.get(Number(found[1]));
    if (!one) return null;
    if (method === "DELETE") world.end(one.id, "cancelled");
    else {
      one.state = ACTIONS[found[2]];
      world.change(one);
    }
    return { schema: 1 };
  }
  if (path !== "/v1/what-if") return null;
  let text = "";
  for await (const chunk of request) text += chunk;
  const body = JSON.parse(text);
  const effect = (one) => ({
    id: one.id, name: world.jobs.get(one.id).name, user: world.jobs.get(one.id).user, start_before_s: one.start_in_s?.[1],
    start_after_s: one.start_in_s && one.start_in_s[1] * 0.9, end_before_s: one.end_in_s[1], end_after_s: one.end_in_s[1] * 0.93,
  });
  const jobs = world.forecast().jobs.slice(0, 200).map(effect);
  const totals = (factor) => ({ jobs: 2107, started: 2107, mean_wait_s: 3100 * factor, mean_end_s: 4200 * factor, last_end_s: 36000 * factor, gpu_hours_shared: 100 });
  if (body.job) jobs.unshift({ id: null, name: "the new job", user: "ann", start_before_s: null, start_after_s: 900, end_before_s: null, end_after_s: 4500 });
  return { schema: 1, policy_before: "tandem", policy: body.policy ?? "tandem", draws: 9, before: totals(1), after: totals(0.93), jobs, jobs_left_off: 1900 };
}

function stream(response, listen) {
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
  response.write(": listening\n\n");
  const id = (kind, data) => (kind === "job" ? `id: ${data.seq}\n` : "");
  const stop = listen((kind, data) => response.write(`${id(kind, data)}event: ${kind}\ndata: ${JSON.stringify(data)}\n\n`));
  response.on("close", stop);
}

const events = (tell) => {
  world.listeners.add(tell);
  return () => world.listeners.delete(tell);
};

const log = (tell) => {
  let step = 0;
  const line = () => `step ${++step} loss ${(4 * Math.exp(-step / 50)).toFixed(4)} \u001b[32mok\u001b[0m <script>alert(1)</script>\n`;
  tell("log", { text: Array.from({ length: 200 }, line).join(""), restart: true });
  const timer = setInterval(() => tell("log", { text: line(), restart: false }), 300);
  return () => clearInterval(timer);
};

const server = createServer(async (request, response) => {
  const url = new URL(request.url, "http://localhost");
  const answer = (status, body, type = "application/json") => {
    response.writeHead(status, {
      "content-type": type, "content-encoding": "gzip", "content-security-policy": CSP, "x-content-type-options": "nosniff",
      "referrer-policy": "no-referrer", "cache-control": "no-store",
    });
    response.end(gzipSync(body, { level: 1 }));
  };
  const file = FILES[url.pathname];
  if (file) return answer(200, page(file[0]), file[1]);
  if (url.pathname === "/v1/events") return stream(response, events);
  if (url.pathname.endsWith("/logs/tail")) return stream(response, log);
  let body = null;
  if (request.method === "GET") {
    for (const [pattern, make] of ROUTES) {
      const found = url.pathname.match(pattern);
      if (found) body = make(found, url.searchParams);
    }
  } else body = await change(url.pathname, request.method, request);
  if (body) return answer(200, JSON.stringify(body));
  return answer(404, JSON.stringify({ error: { code: "not_found", message: "there is no such thing" } }));
});
server.listen(argument("port", 4173), "127.0.0.1", () => {
  console.log(`http://127.0.0.1:${server.address().port}/`);
  process.send?.({ port: server.address().port });
});
// A test lets an hour pass in a moment.
process.on("message", ({ step, times, cpu }) => {
  if (cpu) {
    const { user, system } = process.cpuUsage();
    process.send({ cpu: (user + system) / 1e6 });
    return;
  }
  for (let i = 0; i < times; i++) world.step(step);
});
