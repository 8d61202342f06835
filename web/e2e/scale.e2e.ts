// 64 GPUs, 100,000 jobs of history, 2,000 pending, against the synthetic daemon.

import { fork } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { Browser, Page } from "playwright-core";
import { eventually, expectAccessible, launch, open } from "./site.ts";

let browser: Browser;
let server: ChildProcess;
let url: string;

beforeAll(async () => {
  browser = await launch(["--enable-precise-memory-info", "--js-flags=--expose-gc"]);
  server = fork(fileURLToPath(new URL("../mock/server.mjs", import.meta.url)), ["--port", "0"], { stdio: "ignore" });
  const port = await new Promise<number>((done) => server.once("message", (said) => done((said as { port: number }).port)));
  url = `http://127.0.0.1:${port}/`;
});
afterAll(async () => {
  await browser?.close();
  server?.kill();
});

/** How long frames are counted. */
const SECONDS = 2;

interface ProcessInfo {
  id: number;
  type: string;
  /** Seconds on a core. */
  cpuTime: number;
}

/** Processor time of the browser's processes: unlike the clock, it does not depend on what else the machine does. */
async function processors(): Promise<ReadonlyMap<number, ProcessInfo>> {
  const debug = await browser.newBrowserCDPSession();
  const { processInfo } = (await debug.send("SystemInfo.getProcessInfo")) as { processInfo: ProcessInfo[] };
  await debug.detach();
  return new Map(processInfo.map((one) => [one.id, one]));
}

/** Seconds on a core that each process of the browser has used since. */
async function usedSince(before: ReadonlyMap<number, ProcessInfo>): Promise<{ type: string; seconds: number }[]> {
  const after = await processors();
  return [...after.values()].map(({ id, type, cpuTime }) => ({ type, seconds: cpuTime - (before.get(id)?.cpuTime ?? 0) }));
}

/** Seconds on a core that the server has used. */
async function served(): Promise<number> {
  const answer = new Promise<number>((done) => server.once("message", (said) => done((said as { cpu: number }).cpu)));
  server.send({ cpu: true });
  return answer;
}

const drawn = (page: Page) => page.waitForFunction(() => Number(document.querySelector("canvas")?.dataset.marks) > 100);

it("what is loaded is at most 150 kB compressed", () => {
  const files = ["dashboard.html", "dashboard.js", "dashboard.css"].map((name) => readFileSync(new URL("../dist/" + name, import.meta.url)));
  expect(files.reduce((sum, file) => sum + gzipSync(file, { level: 9 }).length, 0)).toBeLessThan(150_000);
});

it("the first picture takes at most a second of computing, first in the server and then in the page", async () => {
  const times: number[] = [];
  for (let i = 0; i < 3; i++) {
    const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
    const page = await context.newPage();
    const [before, servedBefore] = [await processors(), await served()];
    await page.goto(url);
    await drawn(page);
    const each = await usedSince(before);
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

/** Frames that are drawn in some time while something is done in each of them. */
async function frames(page: Page, act: (n: number) => void): Promise<number> {
  return page.evaluate(
    ([source, seconds]) =>
      new Promise<number>((done) => {
        // The function is built from its own source in the page, where its policy allows no evaluation of text.
        const each = (window as unknown as Record<string, (n: number) => void>)[source];
        let n = 0;
        const start = performance.now();
        const tick = () => {
          each(n++);
          if (performance.now() - start < seconds * 1000) requestAnimationFrame(tick);
          else done(n);
        };
        requestAnimationFrame(tick);
      }),
    [act.name, SECONDS] as const,
  );
}

it("zooming, pointing and scrolling leave room for 30 frames per second", async () => {
  const view = await open(browser, url);
  await drawn(view.page);
  await view.page.evaluate(() => {
    const canvas = document.querySelector("canvas");
    canvas?.focus();
    Object.assign(window, {
      zoom(n: number) {
        const box = canvas?.getBoundingClientRect();
        if (!box) return;
        const at = { clientX: box.left + 500, clientY: box.top + 100 + (n % 300), cancelable: true };
        canvas?.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY: n % 40 < 20 ? -30 : 30 }));
        canvas?.dispatchEvent(new PointerEvent("pointermove", { ...at, pointerType: "mouse" }));
      },
      scroll() {
        const box = document.querySelector(".scroll.tall");
        if (box) box.scrollTop += 97;
      },
    });
  });
  function zoom() {}
  function scroll() {}
  for (const act of [zoom, scroll]) {
    const before = await processors();
    const drawnFrames = await frames(view.page, act);
    // No process of the browser works longer on a frame than a thirtieth of a second, so that 30 fit into a second.
    const each = (await usedSince(before)).map(({ type, seconds }) => ({ type, ms: (1000 * seconds) / drawnFrames }));
    const slowest = each.reduce((a, b) => (b.ms > a.ms ? b : a));
    console.log(`${act.name}: ${slowest.ms.toFixed(1)} ms for a frame in the ${slowest.type}, ${(drawnFrames / SECONDS).toFixed(0)} frames per second by the clock`);
    expect(slowest.ms, `${act.name} in the ${slowest.type}`).toBeLessThan(1000 / 30);
  }
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
  const used = async () => {
    await view.page.evaluate(() => (globalThis as unknown as { gc(): void }).gc());
    return view.page.evaluate(() => (performance as unknown as { memory: { usedJSHeapSize: number } }).memory.usedJSHeapSize / 1e6);
  };
  /** Lets minutes pass, and waits until the page has taken in what happened. */
  const pass = async (minutes: number) => {
    for (let minute = 0; minute < minutes; minute++) {
      server.send({ step: 5, times: 12 });
      await view.page.waitForTimeout(250);
    }
    await view.page.waitForTimeout(1500);
  };
  await pass(10);
  const before = await used();
  await pass(30);
  const between = await used();
  await pass(30);
  const after = await used();
  // A first half hour fills what is kept; a second one must not need more.
  expect(after).toBeLessThan(Math.max(between * 1.15, before * 1.3) + 3);
  await eventually("the page goes on", async () => (await view.page.getByText("live", { exact: true }).count()) > 0);
  expect(view.console).toEqual([]);
  await view.context.close();
});
