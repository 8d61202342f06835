import { describe, expect, it } from "vitest";
import { NB, shortEnd } from "../src/charts/format.ts";
import { address } from "../src/dashboard/api.ts";
import { keep, plain } from "../src/dashboard/parts/log.tsx";
import { sayLimits, shareOf } from "../src/dashboard/pages/users.tsx";
import { parseRoute } from "../src/dashboard/router.ts";
import { ranges, sayLoss, sayMs, sayStart } from "../src/dashboard/words.ts";

describe("addresses", () => {
  it("lead to pages", () => {
    expect(parseRoute("")).toEqual({ page: "overview" });
    expect(parseRoute("#/")).toEqual({ page: "overview" });
    expect(parseRoute("#/job/17")).toEqual({ page: "job", id: 17 });
    expect(parseRoute("#/what-if")).toEqual({ page: "what-if" });
    for (const hash of ["#/job/", "#/job/x", "#/job/1/2", "#/job/-1", "#/pairs/2", "#/__proto__", "#/job/99999999999999999999"]) {
      expect(parseRoute(hash)).toEqual({ page: "unknown" });
    }
  });
  it("of requests are escaped", () => {
    expect(address("/v1/jobs", { user: "a&b=c", after: null, limit: 5 })).toBe("/v1/jobs?user=a%26b%3Dc&limit=5");
  });
});

describe("starts", () => {
  const say = (range: [number, number, number] | null, now = 0) => sayStart(range, now).replaceAll(NB, " ");
  it("are ranges in round numbers", () => {
    expect(say([242, 400, 545])).toBe("in 4–9 min");
    expect(say([50, 300, 4000])).toBe("in 50 s to 1 h 10 min");
    expect(say([0, 30, 44])).toBe("within 45 s");
    expect(say([600, 600, 601])).toBe("in 10 min");
    expect(say([5, 6, 7], 100)).toBe("now");
    expect(say(null)).toBe("not foreseeable");
  });
});

it("a connection that is lost says why, and what to do", () => {
  expect(sayLoss({ status: 0, message: "" }, null)).toMatch(/tandem dashboard has ended, run it again/);
  expect(sayLoss({ status: 503, message: "away" }, 0)).toMatch(/^The daemon does not answer.* This page shows the state at [\d:].*\.$/);
  expect(sayLoss({ status: 401, message: "the session has ended" }, null)).toBe("The session has ended.");
});

it("latencies have a unit that fits", () => {
  expect([0.25, 12, 140, 2500].map((ms) => sayMs(ms).replaceAll(NB, " "))).toEqual(["0.3 ms", "12 ms", "140 ms", "2.50 s"]);
});

it("GPU numbers are shortened", () => {
  expect(ranges([3, 1, 2, 7, 9, 8, 5])).toBe("1–3, 5, 7–9");
  expect(ranges([1, 2])).toBe("1, 2");
  expect(ranges([])).toBe("");
});

describe("logs", () => {
  it("are plain text without what terminals make of them", () => {
    expect(plain("\u001b[31mred\u001b[0m <b>x</b>\r\n10 %\r20 %\rdone\u0000\u202e\n")).toBe("red <b>x</b>\ndone\n");
  });
  it("keep their end", () => {
    const long = Array.from({ length: 5000 }, (_, i) => `line ${i} ${"x".repeat(40)}`).join("\n");
    const kept = keep("", { text: long, restart: true });
    expect(kept.length).toBeLessThanOrEqual(100_000);
    expect(kept.startsWith("line ")).toBe(true);
    expect(kept.endsWith(long.slice(-50))).toBe(true);
    expect(keep("old", { text: "new", restart: true })).toBe("new");
    expect(keep("old", { text: "new", restart: false })).toBe("oldnew");
  });
});

it("shares are those of the account, limits those of the user or of everybody", () => {
  const shares = {
    schema: 1, half_life_h: 24, period_h: 720, limits: { gpus: 4 },
    accounts: [{ name: "vision", weight: 3, members: ["ann"], limits: {} }],
    users: [{ name: "bob", weight: 2, members: [], limits: { gpu_hours: 100, pending: 7 } }, { name: "eve", weight: 5, members: [], limits: { gpus: null } }],
  };
  const say = (user: string) => sayLimits(shareOf(user, shares).limits, shares.period_h).replaceAll(NB, " ");
  expect(shareOf("ann", shares).account?.name).toBe("vision");
  expect([shareOf("bob", shares).weight, say("bob")]).toEqual([2, "100 GPU-hours in 30 d, 7 pending"]);
  expect([shareOf("eve", shares).weight, say("eve")]).toEqual([5, "4 GPUs"]);
  expect(say("unknown")).toBe("4 GPUs");
  expect(sayLimits({}, 1)).toBe("none");
});

it("names that differ at their end are cut in front", () => {
  expect(shortEnd("gpu-node-17 3", 6)).toBe("…-17 3");
  expect(shortEnd("n0 1", 6)).toBe("n0 1");
});
