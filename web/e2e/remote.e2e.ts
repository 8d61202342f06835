// `tandem daemon --web`: the pages over TLS, for users who sign in with a token.

import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { afterAll, beforeAll, expect, it } from "vitest";
import type { Browser } from "playwright-core";
import { Site, Watched, expectAccessible, expectFits, launch } from "./site.ts";

/** A port that was free a moment ago. */
async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address() as AddressInfo;
  await new Promise((done) => server.close(done));
  return port;
}

let browser: Browser;
let site: Site;
let origin: string;

interface Made {
  token: string;
  info: { id: number };
}

beforeAll(async () => {
  browser = await launch();
  const port = await freePort();
  origin = `https://127.0.0.1:${port}`;
  site = new Site(1, "tandem:slice_s=1", ["--web", `127.0.0.1:${port}`]);
  await site.start();
});
afterAll(async () => {
  await browser?.close();
  await site?.stop();
});

it("a user signs in with a token, steers by its scopes, and is out when it is revoked", async () => {
  const id = await site.submit(["-J", "remote", "--class", "demo"]);
  const scope = process.getuid?.() === 0 ? ["--user", "root"] : [];
  const made = JSON.parse(await site.run(["token", "create", "--json", ...scope])) as Made;
  // The certificate is the daemon's own.
  const context = await browser.newContext({ ignoreHTTPSErrors: true });
  const page = await context.newPage();
  const watched = new Watched(page);

  await page.goto(origin);
  const field = page.getByLabel("Token");
  await field.waitFor();
  await expectAccessible(page);
  await expectFits(page);
  await field.fill("tandem_wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("alert").getByText("wrong or has expired").waitFor();
  await page.getByLabel("Token").fill(made.token);
  await page.keyboard.press("Enter");
  await page.getByText("live", { exact: true }).waitFor();
  await page.getByText("remote", { exact: true }).first().waitFor();
  expect(page.url()).toBe(`${origin}/`);
  expect(await page.evaluate(() => document.cookie)).toBe("");
  const [cookie] = await context.cookies();
  expect(cookie).toMatchObject({ name: "__Host-tandem", httpOnly: true, secure: true, sameSite: "Strict" });

  await page.goto(`${origin}/#/job/${id}`);
  await page.getByRole("button", { name: "Cancel", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel the job" }).click();
  await page.getByRole("heading", { name: /remote/ }).getByText("cancelled").waitFor();
  // The wrong token was refused; nothing else was said.
  expect(watched.console.filter((line) => !line.includes("401"))).toEqual([]);

  await site.run(["token", "revoke", String(made.info.id)]);
  expect((await page.request.get(`${origin}/v1/jobs`)).status()).toBe(401);
  await page.goto(origin);
  await page.getByLabel("Token").waitFor();
  await context.close();
});

it("nothing is answered without a session, to another site, or in plain HTTP", async () => {
  const context = await browser.newContext({ ignoreHTTPSErrors: true });
  const { request } = context;
  for (const path of ["/v1/jobs", "/v1/events", "/dashboard.js", "/metrics", "/openapi.json"]) {
    expect((await request.get(origin + path)).status(), path).toBe(401);
  }
  const foreign = { origin: "https://evil.example" };
  expect((await request.post(`${origin}/sign-in`, { headers: foreign, data: "token=x" })).status()).toBe(403);
  expect((await request.post(`${origin}/sign-in`, { data: "token=x" })).status(), "without an origin").toBe(403);
  expect((await request.delete(`${origin}/v1/jobs/1`, { headers: { origin } })).status()).toBe(401);
  await expect(request.get(origin.replace("https", "http"))).rejects.toThrow(/socket hang up|ECONNRESET|Parse Error/);
  await context.close();
});
