// How much work pages are for a browser.

import { expect } from "vitest";
import type { Browser, Page } from "playwright-core";

/** How long frames are counted. */
const SECONDS = 2;

export interface ProcessInfo {
  id: number;
  type: string;
  /** Seconds on a core. */
  cpuTime: number;
}

/** Processor time of the browser's processes: unlike the clock, it does not depend on what else the machine does. */
export async function processors(browser: Browser): Promise<ReadonlyMap<number, ProcessInfo>> {
  const debug = await browser.newBrowserCDPSession();
  const { processInfo } = (await debug.send("SystemInfo.getProcessInfo")) as { processInfo: ProcessInfo[] };
  await debug.detach();
  return new Map(processInfo.map((one) => [one.id, one]));
}

/** Seconds on a core that each process of the browser has used since. */
export async function usedSince(browser: Browser, before: ReadonlyMap<number, ProcessInfo>): Promise<{ type: string; seconds: number }[]> {
  const after = await processors(browser);
  return [...after.values()].map(({ id, type, cpuTime }) => ({ type, seconds: cpuTime - (before.get(id)?.cpuTime ?? 0) }));
}

/** Waits until there is something in the picture of the GPUs. */
export const drawn = (page: Page) => page.waitForFunction(() => Number(document.querySelector("canvas")?.dataset.marks) > 100);

/** Bytes of scripts that the page holds on to, in millions. The browser has to be launched with MEASURE. */
export async function heap(page: Page): Promise<number> {
  const used: number[] = [];
  // One collection leaves what the document refers to from outside of the scripts, and what is just being read.
  for (let i = 0; i < 5; i++) {
    await page.evaluate(() => (globalThis as unknown as { gc(): void }).gc());
    used.push(await page.evaluate(() => (performance as unknown as { memory: { usedJSHeapSize: number } }).memory.usedJSHeapSize / 1e6));
    await page.waitForTimeout(200);
  }
  return Math.min(...used);
}
export const MEASURE = ["--enable-precise-memory-info", "--js-flags=--expose-gc"];

/** Frames that are drawn in some time while something is done in each of them. */
async function frames(page: Page, act: "zoom" | "scroll"): Promise<number> {
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
    [act, SECONDS] as const,
  );
}

/** Zooms, points and scrolls as fast as pictures are drawn. Each picture may take a thirtieth of a second. */
export async function expectQuick(browser: Browser, page: Page): Promise<void> {
  await page.evaluate(() => {
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
  for (const act of ["zoom", "scroll"] as const) {
    const before = await processors(browser);
    const drawnFrames = await frames(page, act);
    // No process of the browser works longer on a frame than a thirtieth of a second, so that 30 fit into a second.
    const each = (await usedSince(browser, before)).map(({ type, seconds }) => ({ type, ms: (1000 * seconds) / drawnFrames }));
    const slowest = each.reduce((a, b) => (b.ms > a.ms ? b : a));
    console.log(`${act}: ${slowest.ms.toFixed(1)} ms for a frame in the ${slowest.type}, ${(drawnFrames / SECONDS).toFixed(0)} frames per second by the clock`);
    expect(slowest.ms, `${act} in the ${slowest.type}`).toBeLessThan(1000 / 30);
  }
}
