// 64 GPUs, 100,000 jobs of history, 2,000 pending, against the synthetic daemon.

import { fork } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { Browser } from "playwright-core";
import { MEASURE, drawn, expectQuick, heap, processors, usedSince } from "./measure.ts";
import { eventually, expectAccessible, launch, open } from "./site.ts";

let browser: Browser;
let server: ChildProcess;
let url: string;

beforeAll(async () => {
  browser = await launch(MEASURE);
  server = fork(fileURLToPath(new URL("../mock/server.mjs", import.meta.url)), ["--port", "0"], { stdio: "ignore" });
  const port = await new Promise<number>((done) => server.once("message", (said) => done((said as { port: number }).port)));
  url = `http://127.0.0.1:${port}/`;
});
afterAll(async () => {
  await browser?.close();
  server?.kill();
});

/** Seconds on a core that the server has used. */
async function served(): Promise<number> {
  const answer = new Promise<number>((done) => server.once("message", (said) => done((said as { cpu: number }).cpu)));
  server.send({ cpu: true });
  return answer;
}

it("what is loaded is at most 150 kB compressed", () => {
  const files = ["dashboard.html", "dashboard.js", "dashboard.css"].map((name) => readFileSync(new URL("../dist/" + name, import.meta.url)));
  expect(files.reduce((sum, file) => sum + gzipSync(file, { level: 9 }).length, 0)).toBeLessThan(150_000);
});

it("the first picture takes at most a second of computing, first in the server and then in the page", async () => {
  const times: number[] = [];
  for (let i = 0; i < 3; i++) {
    const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
    const page = await context.newPage();
    const [before, servedBefore] = [await processors(browser), await served()];
    await page.goto(url);
    await drawn(page);
    const each = await usedSince(browser, before);
    const answers = (await served()) - servedBefore;
    times.push(answers + Math.max(...each.map(({ seconds }) => seconds)));
    const parts = [{ type: "server", seconds: answers }, ...each].filter(({ seconds }) => seconds > 0.01);
    const clock = await page.evaluate(() => performance.now() / 1000);
    console.log(`first picture: ${clock.toFixed(2)} s by the clock; computing: ${parts.map(({ type, seconds }) => `${type} ${seconds.toFixed(2)} s`).join(", ")}`);
    await context.close();
  }
  // The page waits for answers and then draws; the other processes of the browser work beside it.
  expect(Math.min(...times)).toBeLessThan(1);
});

it("zooming, pointing and scrolling leave room for 30 frames per second", async () => {
  const view = await open(browser, url);
  await drawn(view.page);
  await expectQuick(browser, view.page);
  expect(view.console).toEqual([]);
  await expectAccessible(view.page);
  await view.context.close();
});

it("rows are GPUs by node, or nodes", async () => {
  const view = await open(browser, url);
  await drawn(view.page);
  const canvas = view.page.locator("canvas").first();
  const height = async () => (await canvas.boundingBox())?.height ?? 0;
  const byGpu = await height();
  await view.page.getByLabel("Rows").selectOption("node");
  await eventually("eight rows are lower than 64", async () => (await height()) < byGpu);
  await drawn(view.page);
  await canvas.focus();
  await view.page.keyboard.press("ArrowRight");
  await view.page.locator("#tip").getByText(/GPUs? \d+/).first().waitFor();
  await view.page.getByRole("group", { name: "GPUs now" }).getByText("node0").first().waitFor();
  await view.context.close();
});

it("the memory of the tab is stable over an hour of events", async () => {
  const view = await open(browser, url);
  await drawn(view.page);
  /** Lets minutes pass, and waits until the page has taken in what happened. */
  const pass = async (minutes: number) => {
    for (let minute = 0; minute < minutes; minute++) {
      server.send({ step: 5, times: 12 });
      await view.page.waitForTimeout(250);
    }
    await view.page.waitForTimeout(1500);
  };
  await pass(10);
  const before = await heap(view.page);
  await pass(30);
  const between = await heap(view.page);
  await pass(30);
  const after = await heap(view.page);
  // A first half hour fills what is kept; a second one must not need more.
  expect(after).toBeLessThan(Math.max(between * 1.15, before * 1.3) + 3);
  await eventually("the page goes on", async () => (await view.page.getByText("live", { exact: true }).count()) > 0);
  expect(view.console).toEqual([]);
  await view.context.close();
});
