// Real daemons, real dashboards, a real browser.

import { execFile, spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { request } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import type { Browser, BrowserContext, BrowserContextOptions, Page } from "playwright-core";
import { expect } from "vitest";

const BIN = process.env.TANDEM_BIN ?? "";
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
export const JOB = fileURLToPath(new URL("job.py", import.meta.url));

/** Somebody else than the user who runs the tests. */
export interface User {
  uid: number;
  gid: number;
}

const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
];

export const launch = (more: readonly string[] = []): Promise<Browser> =>
  chromium.launch({ executablePath: CHROMIUM, headless: true, args: [...FLAGS, ...more] });

const pause = (ms: number) => new Promise((done) => setTimeout(done, ms));

/** Tries until it holds. */
export async function eventually<T>(what: string, probe: () => T | Promise<T>, within = 20_000): Promise<T> {
  const end = Date.now() + within;
  let last: unknown;
  while (Date.now() < end) {
    try {
      const found = await probe();
      if (found) return found;
      last = found;
    } catch (error) {
      last = error;
    }
    await pause(50);
  }
  throw new Error(`${what} did not come about: ${String(last)}`);
}

async function end(child: ChildProcess, signal: NodeJS.Signals = "SIGTERM"): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = new Promise((done) => child.once("exit", done));
  child.kill(signal);
  await Promise.race([gone, pause(5000)]);
  if (child.exitCode === null && child.signalCode === null) child.kill("SIGKILL");
}

export class Site {
  readonly folder = mkdtempSync(join(tmpdir(), "tandem-e2e-"));
  readonly socket = join(this.folder, "run", "tandem.sock");
  private daemon: ChildProcess | null = null;
  private readonly dashboards: ChildProcess[] = [];

  constructor(
    private readonly devices: number,
    private readonly policy = "tandem:slice_s=1",
    private readonly more: readonly string[] = [],
    private readonly provider: "cpu" | "fake" = "cpu",
  ) {
    chmodSync(this.folder, 0o755);
    mkdirSync(join(this.folder, "out"), { mode: 0o777 });
    chmodSync(join(this.folder, "out"), 0o777);
  }

  async start(): Promise<void> {
    const where = ["--state", join(this.folder, "state"), "--socket", this.socket];
    const gpus = this.provider === "cpu" ? ["--provider", "cpu", "--devices", String(this.devices)] : ["--fake-gpus", String(this.devices)];
    const how = [...gpus, "--policy", this.policy, ...this.more];
    const daemon = spawn(BIN, ["daemon", ...where, ...how], { stdio: ["ignore", "ignore", "pipe"], env: this.env() });
    this.daemon = daemon;
    let said = "";
    daemon.stderr?.on("data", (data: Buffer) => {
      said += data.toString();
    });
    await eventually("the daemon", () => {
      if (daemon.exitCode !== null) throw new Error(said);
      return said.includes("ready at");
    });
  }

  /** An answer of the daemon's interface. */
  get<T>(path: string): Promise<T> {
    return new Promise((resolve, reject) => {
      request({ socketPath: this.socket, path, headers: { host: "tandem" } }, (answer) => {
        let text = "";
        answer.setEncoding("utf8").on("data", (part: string) => {
          text += part;
        });
        answer.on("end", () => resolve(JSON.parse(text) as T));
      }).on("error", reject).end();
    });
  }

  /** Seconds on a core that the daemon and its dashboards have used. */
  served(): number {
    const children = [this.daemon, ...this.dashboards].flatMap((child) => child?.pid ?? []);
    // User and system time, in hundredths of a second, after the name of the program.
    const used = (pid: number) => readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ").slice(11, 13).map(Number);
    return children.flatMap(used).reduce((sum, ticks) => sum + ticks, 0) / 100;
  }

  private env(): NodeJS.ProcessEnv {
    // Nobody's own settings: other users could not read them.
    return { PATH: process.env.PATH, HOME: this.folder, XDG_RUNTIME_DIR: this.folder, NO_COLOR: "1" };
  }

  async stopDaemon(signal: NodeJS.Signals = "SIGTERM"): Promise<void> {
    if (this.daemon) await end(this.daemon, signal);
    this.daemon = null;
  }

  async stopDashboards(): Promise<void> {
    for (const child of this.dashboards.splice(0)) await end(child);
  }

  async stop(): Promise<void> {
    await this.stopDashboards();
    if (this.daemon) {
      // Jobs that still end would write into the folder while it is removed; "all" would be those of one user.
      await eventually("all jobs have ended", async () => {
        const { jobs } = JSON.parse(await this.run(["queue", "--json"])) as { jobs: { id: number }[] };
        if (jobs.length) await this.run(["cancel", ...jobs.map(({ id }) => String(id))]).catch(() => "");
        return !jobs.length;
      });
    }
    await this.stopDaemon();
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }

  /** The command line; what it prints. */
  run(args: readonly string[], user?: User): Promise<string> {
    const options = { env: this.env(), cwd: join(this.folder, "out"), ...user };
    const end = args.indexOf("--") < 0 ? args.length : args.indexOf("--");
    const all = [...args.slice(0, end), "--socket", this.socket, ...args.slice(end)];
    return new Promise((resolve, reject) => {
      execFile(BIN, all, options, (error, stdout, stderr) => {
        if (error) reject(new Error(`tandem ${args.join(" ")}: ${stderr}`));
        else resolve(stdout);
      });
    });
  }

  async submit(options: readonly string[], steps = 1_000_000, user?: User): Promise<number> {
    return this.submitCommand(options, ["python3", JOB, String(steps)], user);
  }

  async submitCommand(options: readonly string[], command: readonly string[], user?: User): Promise<number> {
    const text = await this.run(["submit", "--json", ...options, "--", ...command], user);
    return (JSON.parse(text) as { ids: number[] }).ids[0];
  }

  async info(id: number): Promise<Record<string, unknown>> {
    const found = JSON.parse(await this.run(["info", "--json", String(id)])) as { jobs?: Record<string, unknown>[]; job?: Record<string, unknown> };
    return found.job ?? found.jobs?.[0] ?? {};
  }

  /** The address of a new dashboard, good for one browser. */
  async dashboard(user?: User, port = "0"): Promise<string> {
    const child = spawn(BIN, ["dashboard", "--json", "--no-open", "--port", port, "--socket", this.socket], {
      stdio: ["ignore", "pipe", "ignore"], env: this.env(), ...user,
    });
    this.dashboards.push(child);
    let said = "";
    child.stdout?.on("data", (data: Buffer) => {
      said += data.toString();
    });
    await eventually("the dashboard", () => said.includes("\n"));
    return (JSON.parse(said) as { url: string }).url;
  }
}

/** What the console of a page has said; nothing is what it should say. */
export class Watched {
  readonly console: string[] = [];

  constructor(readonly page: Page) {
    page.on("console", (message) => this.console.push(`${message.type()}: ${message.text()} ${message.location().url}`));
    page.on("pageerror", (error) => this.console.push(`error: ${error.message}`));
  }
}

export async function open(browser: Browser, url: string, options: BrowserContextOptions = {}): Promise<Watched & { context: BrowserContext }> {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  const watched = new Watched(page);
  await page.goto(url);
  await page.waitForURL(/\/$|#/);
  await page.getByText("live", { exact: true }).waitFor();
  return Object.assign(watched, { context });
}

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

interface AxeResult {
  violations: { id: string; nodes: { target: string[] }[] }[];
}

/** Accessibility as axe-core sees it. Its script is put in by the browser's debugger, which the page's policy does not concern. */
export async function expectAccessible(page: Page): Promise<void> {
  await page.evaluate(axe);
  const result = (await page.evaluate("axe.run(document)")) as AxeResult;
  const found = result.violations.map((v) => `${v.id}: ${v.nodes.map((n) => n.target.join(" ")).join(", ")}`);
  expect(found).toEqual([]);
}

/** Nothing sticks out of the page. */
export async function expectFits(page: Page): Promise<void> {
  const [content, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  expect(content).toBeLessThanOrEqual(window);
}

export const canRun = (): string | null => {
  if (!BIN || !existsSync(BIN)) return "TANDEM_BIN names no program";
  return existsSync(CHROMIUM) ? null : `${CHROMIUM} is not there`;
};
