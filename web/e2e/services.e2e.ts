// Services: what they were promised, and how that is kept.

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { Browser } from "playwright-core";
import { Site, launch, open } from "./site.ts";
import type { Watched } from "./site.ts";

let browser: Browser;
let site: Site;
let view: Watched;

beforeAll(async () => {
  browser = await launch();
  site = new Site(1, "tandem", [], "fake");
  await site.start();
  view = await open(browser, await site.dashboard());
});
afterAll(async () => {
  await browser?.close();
  await site?.stop();
});

it("a service is shown against its promise, and says when it is broken", async () => {
  const { page } = view;
  const latency = join(site.folder, "out", "latency");
  writeFileSync(latency, "5");
  const script = `while :; do echo took $(cat ${latency}) ms; sleep 0.05; done`;
  const options = ["--service", "--slo", "p99=100ms", "--share", "0.3", "--latency-regex", "took (\\S+) ms"];
  const id = await site.submitCommand(["-J", "answers", ...options], ["sh", "-c", script]);
  await page.goto(page.url().replace(/#.*/, "") + `#/job/${id}`);
  const figure = (name: string) => page.locator(".figures div").filter({ has: page.getByText(name, { exact: true }) }).locator("dd");
  const says = async (name: string) => (await figure(name).innerText()).replaceAll("\u00a0", " ");
  await figure("Latency").getByText("p99 5.0 ms").waitFor({ timeout: 60_000 });
  await expect.poll(() => says("Promise")).toBe("p99 latency up to 100 ms");
  await expect.poll(() => says("Promise kept")).toBe("100 % of the time");
  expect(await says("Budget")).toBe("all of each GPU, at least 30 %");
  await page.getByRole("img", { name: /^p99 latency, over .*; promised p99 100\sms\.$/ }).waitFor();
  writeFileSync(latency, "150");
  await figure("Latency").getByText("promise broken").waitFor();
  await expect.poll(async () => Number.parseFloat(await says("Promise kept"))).toBeLessThan(100);
  await site.run(["cancel", String(id)]);
});
