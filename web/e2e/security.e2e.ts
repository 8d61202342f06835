// Who gets to see and do what.

import { createServer } from "node:http";
import type { Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Browser } from "playwright-core";
import { Site, eventually, launch, open } from "./site.ts";

const ANN = { uid: 61_001, gid: 61_001 };
const BOB = { uid: 61_002, gid: 61_002 };
const isRoot = process.getuid?.() === 0;

let browser: Browser;
let site: Site;

beforeAll(async () => {
  // The name of somebody else leads to this machine, as after DNS rebinding.
  browser = await launch(["--host-resolver-rules=MAP rebound.test 127.0.0.1"]);
  site = new Site(2);
  await site.start();
});
afterAll(async () => {
  await browser?.close();
  await site?.stop();
});

describe("without the session", () => {
  it("there is nothing, and a used address is used", async () => {
    const url = await site.dashboard();
    const origin = new URL(url).origin;
    const stranger = await browser.newContext();
    const page = await stranger.newPage();
    for (const path of ["/", "/v1/jobs", "/dashboard.js", "/?token=" + "0".repeat(64)]) {
      const answer = await page.goto(origin + path);
      expect(answer?.status()).toBe(401);
    }
    const own = await open(browser, url);
    expect((await page.goto(url))?.status()).toBe(401);
    expect(await own.page.evaluate(() => document.cookie)).toBe("");
    expect(own.page.url()).not.toContain("token");
    expect(own.console).toEqual([]);
    await own.context.close();
    await stranger.close();
  });
});

it("the cookie of a dashboard that has ended opens no later one at the same port", async () => {
  const own = await open(browser, await site.dashboard());
  const origin = new URL(own.page.url()).origin;
  await site.stopDashboards();
  const next = await site.dashboard(undefined, new URL(origin).port);
  expect((await own.page.goto(origin + "/"))?.status()).toBe(401);
  expect((await own.page.goto(origin + "/v1/jobs"))?.status()).toBe(401);
  // The new address opens it, although the browser still has the old cookie.
  expect((await own.page.goto(next))?.status()).toBe(200);
  await own.page.getByText("live", { exact: true }).waitFor();
  await own.context.close();
});

describe("another site in the same browser", () => {
  let evil: Server;
  beforeAll(async () => {
    evil = createServer((_, response) => response.setHeader("content-type", "text/html").end("<!doctype html><title>evil</title>"));
    await new Promise<void>((done) => evil.listen(0, "127.0.0.1", done));
  });
  afterAll(() => {
    evil.close();
  });

  it("can neither read nor change anything, nor frame the page", async () => {
    const id = await site.submit(["-J", "target", "--class", "x"]);
    const own = await open(browser, await site.dashboard());
    const origin = new URL(own.page.url()).origin;
    const attacker = await own.context.newPage();
    await attacker.goto(`http://localhost:${(evil.address() as AddressInfo).port}/`);
    const results = await attacker.evaluate(
      async ([target, job]) => {
        const attempt = (path: string, options: RequestInit) =>
          fetch(target + path, { credentials: "include", ...options }).then((r) => r.status, () => "refused");
        const tries = [
          await attempt("/v1/jobs", {}),
          await attempt(`/v1/jobs/${job}`, { method: "DELETE" }),
          await attempt(`/v1/jobs/${job}/pause`, { method: "POST", mode: "no-cors", headers: { "content-type": "text/plain" } }),
        ];
        const form = document.createElement("form");
        form.method = "POST";
        form.action = `${target}/v1/jobs/${job}/pause`;
        form.target = "sink";
        const frame = document.createElement("iframe");
        frame.name = "sink";
        document.body.append(frame, form);
        form.submit();
        await new Promise((done) => setTimeout(done, 800));
        return tries;
      },
      [origin, id] as const,
    );
    // The answer to a form-like request is opaque, with status 0, or withheld by the browser: nothing can be read from it.
    expect(results.slice(0, 2)).toEqual(["refused", "refused"]);
    expect(["refused", 0]).toContain(results[2]);
    expect((await site.info(id)).state).toMatch(/running|pending/);
    await own.context.close();
  });

  it("gets nothing by a name that was made to lead here", async () => {
    const own = await open(browser, await site.dashboard());
    const port = new URL(own.page.url()).port;
    const rebound = await own.context.newPage();
    const answer = await rebound.goto(`http://rebound.test:${port}/v1/jobs`);
    expect(answer?.status()).toBe(421);
    await own.context.close();
  });
});

describe("hostile names", () => {
  it("are text everywhere", async () => {
    const name = "<img src=x onerror=document.title='hacked'>";
    const id = await site.submit(["-J", name, "--class", "<script>alert(1)</script>"]);
    const own = await open(browser, await site.dashboard());
    for (const hash of ["#/", "#/jobs", `#/job/${id}`, "#/pairs"]) {
      await own.page.goto(own.page.url().replace(/#.*/, "") + hash);
      await own.page.getByRole("heading", { level: 2 }).first().waitFor();
      await own.page.waitForTimeout(300);
    }
    await own.page.goto(own.page.url().replace(/#.*/, "") + `#/job/${id}`);
    await own.page.getByRole("heading", { name: /<img src=x/ }).waitFor();
    expect(await own.page.locator("main img").count()).toBe(0);
    expect(await own.page.title()).not.toContain("hacked");
    expect(own.console).toEqual([]);
    await own.context.close();
  });
});

describe.skipIf(!isRoot)("two users of one daemon", () => {
  it("see each other's queue lines and nothing more", async () => {
    const ann = await site.submit(["-J", "of-ann", "--class", "a"], 1_000_000, ANN);
    const bob = await site.submit(["-J", "of-bob", "--class", "b"], 1_000_000, BOB);
    const views = [await open(browser, await site.dashboard(ANN)), await open(browser, await site.dashboard(BOB))] as const;
    for (const [view, mine, other] of [[views[0], ann, bob], [views[1], bob, ann]] as const) {
      const base = view.page.url().replace(/#.*/, "");
      for (const name of ["of-ann", "of-bob"]) await view.page.getByText(name, { exact: true }).first().waitFor();
      await view.page.goto(base + `#/job/${mine}`);
      await view.page.getByRole("button", { name: "Cancel", exact: true }).waitFor();
      await view.page.getByRole("heading", { name: "Command" }).waitFor();
      await view.page.goto(base + `#/job/${other}`);
      await view.page.getByRole("heading", { name: /Job \d+: of-/ }).waitFor();
      await view.page.waitForTimeout(500);
      expect(await view.page.getByRole("button", { name: "Cancel", exact: true }).count()).toBe(0);
      expect(await view.page.getByRole("heading", { name: "Command" }).count()).toBe(0);
      expect(await view.page.getByRole("heading", { name: "Log" }).count()).toBe(0);
      expect(await view.page.locator(".figures div").filter({ hasText: /^loss/ }).count()).toBe(0);
      // Not even by hand.
      const tries = await view.page.evaluate(async (id) => {
        const ask = async (path: string, method = "GET") => (await fetch(path, { method })).status;
        return [await ask(`/v1/jobs/${id}`, "DELETE"), await ask(`/v1/jobs/${id}/pause`, "POST"), await ask(`/v1/jobs/${id}/logs`), await ask(`/v1/jobs/${id}/logs/tail`)];
      }, other);
      expect(tries).toEqual([403, 403, 403, 403]);
      const series = await view.page.evaluate(async (id) => (await (await fetch(`/v1/jobs/${id}/series`)).json()) as { scalars: object }, other);
      expect(series.scalars).toEqual({});
      // A refused request is told by the browser itself, nothing else is said.
      expect(view.console.filter((line) => !line.includes("403"))).toEqual([]);
    }
    await eventually("both go on", async () => (await site.info(ann)).state !== "cancelled" && (await site.info(bob)).state !== "cancelled");
    for (const view of views) await view.context.close();
  });
});
