// A synthetic cluster for development and for tests of scale: no scheduling, only plausible data and a steady course of events.

const CLASSES = ["resnet50 b64", "bert-base b32", "gpt2-small b8", "unet b16", "dlrm b4096", "vit-b b64", "lstm-ptb b64", "nerf b4096", "ppo b256", "yolo-s b16", "wav2vec b12", "<img src=x onerror=alert(1)>"];
const USERS = ["ann", "bob", "chen", "dara", "eva", "farid", "</script><b>mallory</b>"];
const STATES = ["completed", "completed", "completed", "completed", "failed", "cancelled", "timeout", "oom"];

/** Numbers that look random and are the same every time. */
export function random(seed) {
  let state = (seed * 2654435761) >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const iso = (seconds) => new Date(seconds * 1000).toISOString();

export class World {
  constructor({ gpus = 64, perNode = 8, history = 100_000, pending = 2000, now = Date.now() / 1000 } = {}) {
    Object.assign(this, { gpus, perNode, history });
    this.now = now;
    this.started = now - 3 * 86400;
    this.seq = 1;
    this.staySeq = 1;
    this.stays = [];
    this.open = new Map();
    this.jobs = new Map();
    this.queue = [];
    this.over = [];
    this.next = history + 1;
    this.tenants = Array.from({ length: gpus }, () => []);
    this.listeners = new Set();
    this.random = random(7);
    this.pendingMin = pending;
    this.past(86400);
    for (let i = 0; i < pending; i++) this.submit(now - this.random() * 7200);
    for (let gpu = 0; gpu < gpus; gpu++) for (let k = 0; k < this.room(gpu); k++) this.place(gpu, now - this.random() * 3000);
  }

  /** How many tenants a GPU has here. */
  room(gpu) {
    return gpu === this.gpus - 1 ? 0 : gpu % 3 ? 2 : 1;
  }

  base(id) {
    const r = random(id);
    const klass = CLASSES[Math.floor(r() * CLASSES.length)];
    return { id, name: `${klass.split(" ")[0]}-${id}`, user: USERS[Math.floor(r() * USERS.length)], class: klass, gpus: r() < 0.9 ? 1 : 0.5, r };
  }

  /** A job of long ago. */
  old(id) {
    const { r, ...base } = this.base(id);
    const end = this.now - (this.history - id) * 0.8 - 60;
    const run = 60 + r() * 3000;
    const state = STATES[Math.floor(r() * STATES.length)];
    return {
      ...base, state, reason: state === "failed" ? "exit code 1" : null, task: null, devices: [Math.floor(r() * this.gpus)], beside: [], rate: null,
      rate_measured: false, submit_time: iso(end - run - r() * 900), start_time: iso(end - run), end_time: iso(end), run_s: run,
      shared_s: run * r() * 0.7, exit_code: state === "completed" ? 0 : 1,
    };
  }

  line(job) {
    const { done: _done, length: _length, ...line } = job;
    return { ...line, run_s: job.start_time ? this.now - Date.parse(job.start_time) / 1000 : 0 };
  }

  submit(at = this.now) {
    const { r, ...base } = this.base(this.next++);
    const job = {
      ...base, state: "pending", reason: "needs 1 device, 0 free", task: null, devices: [], beside: [], rate: null, rate_measured: false,
      submit_time: iso(at), start_time: null, end_time: null, run_s: 0, shared_s: 0, exit_code: null, length: 120 + r() * 3600, done: 0,
    };
    this.jobs.set(job.id, job);
    this.queue.push(job.id);
    this.change(job);
    return job;
  }

  /** Placements of the last day, so that there is a past to draw. */
  past(seconds) {
    for (let gpu = 0; gpu < this.gpus; gpu++) {
      for (let lane = 0; lane < 2; lane++) {
        let at = this.now - seconds;
        while (at < this.now - 3600) {
          const length = 200 + this.random() * 2400;
          if (lane === 0 || this.random() < 0.6) {
            const { r, ...base } = this.base(Math.floor(this.random() * this.history) + 1);
            const rate = lane || r() < 0.7 ? 0.5 + r() * 0.52 : 1;
            this.stays.push({ seq: 0, job: base.id, name: base.name, user: base.user, class: base.class, devices: [gpu], from: iso(at), to: iso(Math.min(at + length, this.now - 3100)), rate, rate_measured: r() < 0.9, beside: lane ? [1] : [] });
          }
          at += length + this.random() * 300;
        }
      }
    }
    this.stays.sort((a, b) => (a.from < b.from ? -1 : 1));
    this.stays.forEach((stay, i) => (stay.seq = i + 1));
    this.staySeq = this.stays.length + 1;
  }

  place(gpu, at = this.now) {
    let job;
    do job = this.jobs.get(this.queue.shift());
    while (this.queue.length && job?.state !== "pending");
    if (job?.state !== "pending") return;
    job.state = "running";
    job.reason = null;
    job.devices = [gpu];
    job.start_time = iso(at);
    this.tenants[gpu].push(job.id);
    this.regroup(gpu, at);
    this.change(job);
  }

  /** The tenants of a GPU have changed: their placements end and new ones begin. */
  regroup(gpu, at = this.now) {
    const present = this.tenants[gpu];
    for (const id of present) {
      const job = this.jobs.get(id);
      job.beside = present.filter((other) => other !== id);
      job.rate = job.beside.length ? 0.55 + random(id * 31)() * 0.45 : 1;
      job.rate_measured = job.beside.length === 0 || random(id * 17)() < 0.85;
      this.close(id, at);
      const stay = { seq: this.staySeq++, job: id, name: job.name, user: job.user, class: job.class, devices: [gpu], from: iso(at), to: null, rate: job.rate, rate_measured: job.rate_measured, beside: job.beside };
      this.stays.push(stay);
      this.open.set(id, stay);
      this.tell("placement", stay);
    }
    if (this.stays.length > 60_000) this.stays.splice(0, 10_000);
  }

  close(id, at = this.now) {
    const stay = this.open.get(id);
    if (!stay) return;
    stay.to = iso(at);
    this.open.delete(id);
    this.tell("placement", stay);
  }

  end(id, state = "completed") {
    const job = this.jobs.get(id);
    if (!job) return;
    const gpu = job.devices[0];
    job.state = state;
    job.reason = state === "cancelled" ? "cancelled by its user" : null;
    job.end_time = iso(this.now);
    job.exit_code = state === "completed" ? 0 : 1;
    job.rate = null;
    job.beside = [];
    this.close(id);
    if (gpu !== undefined) {
      this.tenants[gpu] = this.tenants[gpu].filter((other) => other !== id);
      this.regroup(gpu);
    }
    this.over.unshift(job);
    this.jobs.delete(id);
    if (this.over.length > 1000) this.over.pop();
    this.change(job);
  }

  change(job) {
    const { id, state, reason, devices, exit_code, name, user, gpus, submit_time, start_time, end_time } = job;
    this.tell("job", { seq: this.seq++, time: iso(this.now), id, state, reason, devices, exit_code, name, user, class: job.class, gpus, submit_time, start_time, end_time });
  }

  tell(kind, data) {
    for (const listener of this.listeners) listener(kind, data);
  }

  /** Time passes. */
  step(seconds) {
    this.now += seconds;
    for (const id of this.open.keys()) {
      const job = this.jobs.get(id);
      if (job.state !== "running") continue;
      job.done += seconds * job.rate;
      if (job.rate_measured) job.rate = Math.min(1.05, Math.max(0.4, job.rate + (this.random() - 0.5) * 0.01));
      if (job.done > job.length) this.end(job.id, this.random() < 0.95 ? "completed" : "failed");
    }
    for (let gpu = 0; gpu < this.gpus; gpu++) if (this.tenants[gpu].length < this.room(gpu)) this.place(gpu);
    while (this.queue.length < this.pendingMin) this.submit();
    this.tell("sample", this.sample());
  }

  sample() {
    const jobs = [...this.open.keys()].map((id) => this.jobs.get(id)).filter((job) => job.state === "running");
    return {
      time: iso(this.now),
      jobs: jobs.map((job) => ({ id: job.id, rate: job.rate, rate_measured: job.rate_measured, steps_per_s: job.rate * 12, memory_bytes: 6e9, share: 1, beside: job.beside, scalars: { loss: 4 * Math.exp(-job.done / 2000) } })),
      devices: this.devices().map(({ index, memory_used_bytes, utilization, state, jobs: there, normalised_throughput, measured }) => ({ index, memory_used_bytes, utilization, state, jobs: there, normalised_throughput, measured })),
    };
  }

  devices() {
    return this.tenants.map((jobs, index) => {
      const rates = jobs.map((id) => this.jobs.get(id)?.rate ?? 0);
      return {
        index, name: `gpu${index % this.perNode}`, node: `node${Math.floor(index / this.perNode)}`, kind: "A100-80GB", memory_bytes: 80 * 2 ** 30,
        memory_used_bytes: jobs.length * 11e9, utilization: jobs.length ? 0.9 : 0, state: index === this.gpus - 1 ? "drained" : "up", foreign_bytes: null, jobs: [...jobs],
        normalised_throughput: jobs.length ? rates.reduce((a, b) => a + b, 0) : null, measured: jobs.every((id) => this.jobs.get(id)?.rate_measured),
      };
    });
  }

  forecast() {
    const stays = [];
    const jobs = [];
    const free = this.tenants.map((ids, gpu) => (this.room(gpu) ? Math.max(30, ...ids.map((id) => this.jobs.get(id).length - this.jobs.get(id).done)) : Infinity));
    for (const ids of this.tenants) {
      for (const id of ids) {
        const job = this.jobs.get(id);
        const left = Math.max(30, job.length - job.done);
        stays.push({ job: id, devices: job.devices, from_s: 0, to_s: left });
        jobs.push({ id, start_in_s: null, end_in_s: [left * 0.8, left, left * 1.5] });
      }
    }
    for (const id of this.queue) {
      const job = this.jobs.get(id);
      if (job?.state !== "pending") continue;
      const gpu = free.indexOf(Math.min(...free));
      const start = free[gpu];
      free[gpu] += job.length;
      if (stays.length < 2000) stays.push({ job: job.id, devices: [gpu], from_s: start, to_s: free[gpu] });
      jobs.push({ id: job.id, start_in_s: [start * 0.7, start, start * 1.6], end_in_s: [free[gpu] * 0.7, free[gpu], free[gpu] * 1.6] });
    }
    return { schema: 1, time: iso(this.now), policy: "tandem", draws: 5, jobs, placements: stays };
  }

  page({ state, user, after, limit, order }) {
    const states = state ? state.split(",") : null;
    if (order !== "desc") return { schema: 1, jobs: [...this.jobs.values()].filter((job) => states.includes(job.state)).slice(0, limit).map((job) => this.line(job)) };
    const jobs = [];
    const wanted = (job) => (!states || states.includes(job.state)) && (!user || job.user === user);
    const recent = [...this.jobs.values(), ...this.over].sort((a, b) => b.id - a.id);
    for (const job of recent) if (order === "desc" && (!after || job.id < after) && wanted(job) && jobs.length < limit) jobs.push(this.line(job));
    for (let id = Math.min(this.history, after ? after - 1 : this.history); id > 0 && jobs.length < limit; id--) {
      const job = this.old(id);
      if (wanted(job)) jobs.push(job);
    }
    const last = jobs[jobs.length - 1];
    return { schema: 1, jobs, ...(jobs.length === limit && last ? { next_after: last.id } : {}) };
  }

  classes() {
    const r = random(99);
    const pair = (other) => {
      const measurements = Math.floor(r() * 12);
      const rate = 0.5 + r() * 0.55;
      const recent = Array.from({ length: measurements }, () => rate + (r() - 0.5) * 0.1);
      return [other, { rate, measurements, uncertainty: measurements ? 0.2 / (1 + measurements) : 0.2, recent }];
    };
    const one = (name) => ({
      name, memory_bytes: Math.round(4e9 + r() * 8e9), steps_per_s: { 1: 5 + r() * 40 }, finished: Math.floor(r() * 400),
      beside: Object.fromEntries(CLASSES.filter(() => r() < 0.8).map(pair)),
    });
    return { schema: 1, classes: CLASSES.map(one) };
  }
}
