// Pages against a real daemon with real jobs.

import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Browser, Locator } from "playwright-core";
import { Site, eventually, expectAccessible, expectFits, launch, open } from "./site.ts";
import type { Watched } from "./site.ts";

let browser: Browser;
let site: Site;
let url: string;
let view: Watched;
/** Jobs that several tests look at. */
const ids = { left: 0, right: 0, patient: 0 };

beforeAll(async () => {
  browser = await launch();
  site = new Site(1);
  await site.start();
  // A class that is known may share; the first of it runs alone.
  const first = await site.submit(["-J", "first", "--class", "demo"], 400);
  await site.run(["wait", String(first)]);
  url = await site.dashboard();
  view = await open(browser, url);
});
afterAll(async () => {
  await browser?.close();
  await site?.stop();
});

const row = (table: string, text: string) => view.page.getByRole("group", { name: table }).getByRole("row").filter({ hasText: text });

/** When a name appears on the page, by its own clock: every change of the document is looked at. */
const appears = (name: string): Promise<number> =>
  view.page.evaluate(
    (text) =>
      new Promise<number>((done) => {
        const observer = new MutationObserver(() => {
          if (!document.body.textContent?.includes(text)) return;
          observer.disconnect();
          done(Date.now());
        });
        observer.observe(document.body, { childList: true, subtree: true, characterData: true });
      }),
    name,
  );

describe("a job that is submitted", () => {
  it("appears within a second and moves through its states", async () => {
    for (let attempt = 0; attempt < 8; attempt++) {
      const name = `brief-${attempt}`;
      const shown = appears(name);
      const submitted = Date.now();
      await site.submit(["-J", name, "--class", "demo"], 20);
      expect((await shown) - submitted, name).toBeLessThan(1000);
    }
    const id = await site.submit(["-J", "walker", "--class", "demo"], 300);
    await row("Tenants", "walker").getByText("running").waitFor();
    await row("Just ended", "walker").getByText("completed").waitFor({ timeout: 30_000 });
    expect((await site.info(id)).state).toBe("completed");
  });

  it("has the tenants and rates that tandem info tells", async () => {
    const left = (ids.left = await site.submit(["-J", "left", "--class", "demo"]));
    const right = (ids.right = await site.submit(["-J", "right", "--class", "demo"]));
    const told = await eventually("both share and are measured", async () => {
      const info = await site.info(right);
      return info.rate_measured && (info.beside as number[]).includes(left) ? info : null;
    }, 60_000);
    await row("Tenants", "right").getByRole("link", { name: String(left), exact: true }).waitFor();
    await eventually("the page has the rate of tandem info", async () => {
      const shown = Number((await row("Tenants", "right").getByRole("cell").nth(6).innerText()).match(/[\d.]+/)?.[0]);
      const now = (await site.info(right)).rate as number;
      return Math.abs(shown - now) < 0.03;
    });
    expect(told?.devices).toEqual([0]);
    const marks = await view.page.locator("canvas").first().getAttribute("data-marks");
    expect(Number(marks)).toBeGreaterThanOrEqual(3);
    await view.page.locator("canvas").first().focus();
    await view.page.keyboard.press("ArrowRight");
    await view.page.locator("#tip").getByText(/^job \d+ /).waitFor();
  });

  it("waits with a reason and a range of its start", async () => {
    ids.patient = await site.submit(["-J", "patient", "--exclusive", "-t", "10"]);
    const waits = row("Queue", "patient");
    await waits.waitFor();
    await eventually("a reason", async () => ((await waits.getByRole("cell").nth(6).innerText()) ?? "–") !== "–");
    await eventually("a start", async () => /in |within |now/.test(await waits.getByRole("cell").nth(5).innerText()), 30_000);
  });

  it("is in the forecast, after now", async () => {
    const canvas = view.page.locator("canvas").first();
    const tip = view.page.locator("#tip");
    await canvas.focus();
    await eventually("a tenant that is to come", async () => {
      await view.page.keyboard.press("End");
      const text = await tip.innerText();
      return text.includes(`job ${ids.patient} patient`) && text.includes("forecast:");
    });
    await view.page.keyboard.press("Escape");
  });
});

describe("from the page", () => {
  it("a job is paused, resumed and cancelled, by keyboard only", async () => {
    const { page } = view;
    // Room for one more tenant.
    await site.run(["cancel", String(ids.right), String(ids.patient)]);
    const id = await site.submit(["-J", "steered", "--class", "demo"]);
    await eventually("it runs", async () => (await site.info(id)).state === "running", 40_000);
    await page.goto(page.url().replace(/#.*/, "") + `#/job/${id}`);
    const heading = page.getByRole("heading", { name: /steered/ });
    await heading.waitFor();
    const pressButton = async (button: Locator) => {
      await button.waitFor();
      for (let i = 0; i < 60 && !(await button.evaluate((node) => node === document.activeElement)); i++) await page.keyboard.press("Tab");
      expect(await button.evaluate((node) => node === document.activeElement)).toBe(true);
      await page.keyboard.press("Enter");
    };
    const press = async (name: string) => {
      await page.locator("body").focus();
      await pressButton(page.getByRole("button", { name, exact: true }));
    };
    await press("Pause");
    await heading.getByText("paused").waitFor();
    expect((await site.info(id)).state).toBe("paused");
    await press("Resume");
    await heading.getByText("running").waitFor();
    expect((await site.info(id)).state).toBe("running");
    await press("Cancel");
    const dialog = page.getByRole("dialog");
    // Escape leads back to the button, any number of times.
    for (let times = 0; times < 3; times++) {
      await dialog.waitFor();
      await page.keyboard.press("Escape");
      await dialog.waitFor({ state: "detached" });
      expect(await page.evaluate(() => document.activeElement?.textContent)).toBe("Cancel");
      await page.keyboard.press("Enter");
    }
    expect((await site.info(id)).state).not.toBe("cancelled");
    await pressButton(dialog.locator("button.danger"));
    await heading.getByText("cancelled").waitFor();
    expect((await site.info(id)).state).toBe("cancelled");
  });

  it("a job tells its speed, loss, decisions and log, as text", async () => {
    const { page } = view;
    await page.goto(page.url().replace(/#.*/, "") + `#/job/${ids.left}`);
    await page.getByText("Steps per second now").waitFor();
    await eventually("steps per second", async () => {
      const text = await page.locator(".figures div").filter({ hasText: "Steps per second now" }).locator("dd").innerText();
      return Number(text) > 1;
    });
    await page.locator(".figures div").filter({ hasText: /^loss/ }).waitFor();
    await page.getByRole("img", { name: /^loss, over/ }).waitFor();
    await page.getByRole("heading", { name: "Decisions" }).waitFor();
    await eventually("decisions", async () => (await page.locator(".decisions li").count()) > 0);
    await page.locator(".log").getByText(/begins <script>/).waitFor();
    await eventually("new lines", async () => (await page.locator(".log").innerText()).match(/step \d+/g)?.length);
    expect(await page.title()).not.toContain("hacked");
  });

  it("what-if is answered by the simulator", async () => {
    const { page } = view;
    await page.getByRole("link", { name: "What if" }).click();
    await page.getByLabel("More GPUs").fill("1");
    await page.getByRole("button", { name: "Simulate" }).click();
    const effect = page.getByRole("group", { name: "Effect on all" });
    await effect.waitFor({ timeout: 60_000 });
    await effect.getByText("Mean time to the end").waitFor();
    await page.getByRole("group", { name: "Effect on each job" }).getByText("left").waitFor();
    await page.getByLabel("One more job").check();
    await page.getByLabel("Policy").selectOption("fifo");
    await page.getByRole("button", { name: "Simulate" }).click();
    await page.getByText("the new job").first().waitFor({ timeout: 60_000 });
    await effect.getByText("fifo").waitFor();
  });
});

describe("every page", () => {
  const pages = ["#/", "#/jobs", "#/job/1", "#/pairs", "#/what-if", "#/users", "#/health"];
  let pending = 0;
  beforeAll(async () => {
    pending = await site.submit(["-J", "next", "--exclusive", "-t", "10"]);
  });
  const options = [
    ["a desk", { viewport: { width: 1280, height: 900 } }],
    ["a phone", { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true }],
    ["the dark", { colorScheme: "dark" as const }],
  ] as const;
  it.each(options)("is accessible and fits %s", async (_, settings) => {
    const own = await open(browser, await site.dashboard(), settings);
    for (const hash of [...pages, `#/job/${ids.left}`, `#/job/${pending}`]) {
      await own.page.goto(own.page.url().replace(/#.*/, "") + hash);
      await own.page.getByRole("heading", { level: 2 }).first().waitFor();
      await own.page.waitForTimeout(300);
      await expectAccessible(own.page);
      await expectFits(own.page);
    }
    const names = await own.page.getByRole("navigation", { name: "Pages" }).getByRole("link").allInnerTexts();
    expect(names).toEqual(["Overview", "Jobs", "Pairs", "What if", "Users", "Health"]);
    expect(own.console).toEqual([]);
    await own.context.close();
  });
});

describe("a page that is left open", () => {
  it("has said nothing on its console", () => {
    expect(view.console).toEqual([]);
  });

  it("has a second tab, and both recover when the daemon is killed and started again", async () => {
    const own = await open(browser, await site.dashboard());
    const second = await own.context.newPage();
    await second.goto(own.page.url());
    await second.getByText("live", { exact: true }).waitFor();
    for (const page of [own.page, second]) await page.getByRole("heading", { name: /^Queue/ }).waitFor();
    await site.stopDaemon("SIGKILL");
    for (const page of [own.page, second]) {
      await page.getByText("no connection, trying again").waitFor();
      await page.getByRole("alert").getByText(/^The daemon does not answer.* tandem daemon start .* shows the state at/).waitFor();
    }
    await site.start();
    for (const page of [own.page, second]) {
      await page.getByText("live", { exact: true }).waitFor({ timeout: 15_000 });
      await page.getByRole("alert").waitFor({ state: "detached" });
    }
    const id = await site.submit(["-J", "after", "--class", "demo"], 200);
    for (const page of [own.page, second]) await page.getByText("after", { exact: true }).first().waitFor();
    await site.run(["cancel", String(id)]).catch(() => "");
    // The browser itself notes the stream that broke and the requests that found no daemon; the page says nothing.
    const said = own.console.filter((line) => !/^error: Failed to load resource: (net::|the server responded with a status of 503)/.test(line));
    expect(said).toEqual([]);
    await own.context.close();
  });

  it("is not locked out by many tabs in the background", async () => {
    const own = await open(browser, await site.dashboard());
    const tabs = [];
    // Headless tabs are all in sight; this is what the browser would tell those that are not.
    for (let i = 0; i < 8; i++) {
      const tab = await own.context.newPage();
      await tab.goto(own.page.url());
      await tab.getByText("live", { exact: true }).waitFor();
      await tab.evaluate(() => {
        Object.defineProperty(document, "visibilityState", { value: "hidden", configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
      });
      tabs.push(tab);
    }
    const id = await site.submit(["-J", "seen", "--class", "demo"], 50);
    await own.page.getByText("seen", { exact: true }).first().waitFor();
    expect(await tabs[0].getByText("seen", { exact: true }).count()).toBe(0);
    await tabs[0].evaluate(() => {
      Object.defineProperty(document, "visibilityState", { value: "visible", configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    });
    await tabs[0].getByText("seen", { exact: true }).first().waitFor();
    await site.run(["cancel", String(id)]).catch(() => "");
    await own.context.close();
  });

  it("says so when tandem dashboard has ended", async () => {
    const own = await open(browser, await site.dashboard());
    await site.stopDashboards();
    await own.page.getByRole("alert").getByText(/If tandem dashboard has ended, run it again/).waitFor();
    await own.context.close();
  });
});
