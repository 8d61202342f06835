// Makes the pictures of docs/dashboard.md: real jobs under a real daemon, each page in a real browser.
// Usage: TANDEM_BIN=target/release/tandem node web/screenshots.mjs [docs/dashboard]

import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const BIN = resolve(process.env.TANDEM_BIN ?? "target/release/tandem");
const OUT = resolve(process.argv[2] ?? fileURLToPath(new URL("../docs/dashboard", import.meta.url)));
const JOB = fileURLToPath(new URL("e2e/job.py", import.meta.url));
/** How long jobs run before the pictures are made. */
const SECONDS = Number(process.env.SECONDS ?? 100);
const CLASSES = ["resnet50 b64", "bert-base b32", "gpt2 b8", "unet b16"];

const folder = mkdtempSync(join(tmpdir(), "tandem-shots-"));
const socket = join(folder, "run", "tandem.sock");
const env = { PATH: process.env.PATH, HOME: folder, XDG_RUNTIME_DIR: folder };
const pause = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));
const run = (command, ...rest) => execFileSync(BIN, [command, "--socket", socket, ...rest], { env, cwd: folder, encoding: "utf8" });
const children = [];

/** Starts a program and waits until it has printed what shows that it is ready. */
function start(args, from, mark) {
  const child = spawn(BIN, args, { env, stdio: ["ignore", "pipe", "pipe"] });
  children.push(child);
  return new Promise((done) => {
    let text = "";
    child[from].on("data", (data) => {
      text += data;
      if (text.includes(mark)) done(text);
    });
  });
}

/** Submits a job of a class that takes so many steps of about 20 ms, of which it computes a part. */
const submit = (number, steps, ...options) =>
  Number(JSON.parse(run("submit", "--json", "-J", `train-${number}`, "--class", CLASSES[number % CLASSES.length], ...options, "--", "python3", JOB, String(steps), "0.002", "0.018")).ids[0]);

async function shoot(browser, url, job) {
  const pages = { overview: "", job: `job/${job}`, pairs: "pairs", "what-if": "what-if", users: "users", health: "health" };
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 } });
  const page = await context.newPage();
  await page.goto(url);
  await page.getByText("live", { exact: true }).waitFor();
  const origin = new URL(page.url()).origin;
  const picture = (name) => page.screenshot({ path: join(OUT, `${name}.png`) });
  for (const [name, hash] of Object.entries(pages)) {
    await page.goto(`${origin}/#/${hash}`);
    if (name === "overview") await page.getByLabel("Last").selectOption("300");
    if (name === "what-if") {
      await page.getByLabel("More GPUs").fill("2");
      await page.getByRole("button", { name: "Simulate" }).click();
      await page.getByRole("group", { name: "Effect on all" }).waitFor({ timeout: 60_000 });
    }
    await pause(3);
    await picture(name);
  }
  await page.emulateMedia({ colorScheme: "dark" });
  await page.goto(`${origin}/#/`);
  await pause(2);
  await picture("dark");
  await page.setViewportSize({ width: 390, height: 860 });
  await page.emulateMedia({ colorScheme: "light" });
  await pause(2);
  await picture("phone");
  await context.close();
}

mkdirSync(OUT, { recursive: true });
let browser;
try {
  await start(["daemon", "--state", join(folder, "state"), "--socket", socket, "--fake-gpus", "6", "--policy", "sjf-ffs"], "stderr", "ready at");
  // One of each class alone, so that later ones are known and may share.
  CLASSES.forEach((_, number) => submit(number, 300));
  await pause(25);
  for (let number = 4; number < 12; number++) submit(number, 4000 + 500 * number);
  for (let number = 12; number < 24; number++) submit(number, 1500 + 100 * number, ...(number % 5 ? [] : ["--gpus", "2"]));
  await pause(SECONDS);
  const text = await start(["dashboard", "--json", "--no-open", "--socket", socket], "stdout", "\n");
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-quic"] });
  const { jobs } = JSON.parse(run("queue", "--json"));
  const job = jobs.find((one) => one.beside?.length && one.rate_measured) ?? jobs.find((one) => one.state === "running");
  await shoot(browser, JSON.parse(text).url, job.id);
  run("cancel", "all");
  await pause(2);
} finally {
  await browser?.close();
  for (const child of children.toReversed()) child.kill();
  await pause(1);
  rmSync(folder, { recursive: true, force: true });
}
