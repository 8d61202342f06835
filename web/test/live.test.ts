import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Live, whileVisible } from "../src/dashboard/live.ts";

class FakeSource extends EventTarget {
  static made: FakeSource[] = [];
  closed = false;
  constructor(readonly url: string) {
    super();
    FakeSource.made.push(this);
  }
  close() {
    this.closed = true;
  }
  say(kind: string, data: string) {
    this.dispatchEvent(new MessageEvent(kind, { data }));
  }
}

function begin() {
  const log: string[] = [];
  const live = new Live(
    { url: "/v1/events", kinds: ["job", "ping"], source: (url) => new FakeSource(url) as unknown as EventSource },
    {
      opened: () => log.push("opened"),
      state: (state) => log.push(state),
      event: (kind, data) => log.push(`${kind} ${JSON.stringify(data)}`),
    },
  );
  live.start();
  return { live, log };
}

beforeEach(() => {
  FakeSource.made = [];
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

describe("the stream of events", () => {
  it("is passed on; what is no JSON is not", () => {
    const { log } = begin();
    const [source] = FakeSource.made;
    source.dispatchEvent(new Event("open"));
    source.say("job", '{"id":1}');
    source.say("job", "{nonsense");
    source.say("other", "1");
    expect(log).toEqual(["connecting", "live", "opened", 'job {"id":1}']);
  });
  it("is opened again, later and later, and everything is read anew", () => {
    const { log } = begin();
    FakeSource.made[0].dispatchEvent(new Event("open"));
    for (let i = 0; i < 8; i++) {
      const source = FakeSource.made[FakeSource.made.length - 1];
      source.dispatchEvent(new Event("error"));
      expect(source.closed).toBe(true);
      vi.advanceTimersByTime(5000);
    }
    expect(FakeSource.made).toHaveLength(9);
    FakeSource.made[8].dispatchEvent(new Event("open"));
    expect(log.slice(-2)).toEqual(["live", "opened"]);
    // After success it begins with short waits again.
    FakeSource.made[8].dispatchEvent(new Event("error"));
    vi.advanceTimersByTime(250);
    expect(FakeSource.made).toHaveLength(10);
  });
  it("that has gone silent is given up", () => {
    begin();
    FakeSource.made[0].dispatchEvent(new Event("open"));
    vi.advanceTimersByTime(30_000);
    FakeSource.made[0].say("ping", "{}");
    vi.advanceTimersByTime(30_000);
    expect(FakeSource.made[0].closed).toBe(false);
    vi.advanceTimersByTime(11_000);
    expect(FakeSource.made[0].closed).toBe(true);
  });
  it("of a tab that nobody sees is given back, and opened again when the tab is", () => {
    const page = Object.assign(new EventTarget(), { visibilityState: "hidden" });
    vi.stubGlobal("document", page);
    const show = (visibilityState: string) => {
      page.visibilityState = visibilityState;
      page.dispatchEvent(new Event("visibilitychange"));
    };
    const { live, log } = begin();
    live.stop();
    const stop = whileVisible(live);
    expect(FakeSource.made).toHaveLength(1);
    show("visible");
    expect(FakeSource.made).toHaveLength(2);
    FakeSource.made[1].dispatchEvent(new Event("open"));
    show("hidden");
    vi.advanceTimersByTime(3000);
    show("visible");
    vi.advanceTimersByTime(10_000);
    expect(FakeSource.made[1].closed, "a glance at another tab").toBe(false);
    show("hidden");
    vi.advanceTimersByTime(10_000);
    expect(FakeSource.made[1].closed).toBe(true);
    show("visible");
    expect(FakeSource.made).toHaveLength(3);
    FakeSource.made[2].dispatchEvent(new Event("open"));
    expect(log.slice(-3), "all is read anew").toEqual(["connecting", "live", "opened"]);
    stop();
    show("visible");
    expect(FakeSource.made[2].closed).toBe(true);
    expect(FakeSource.made).toHaveLength(3);
    vi.unstubAllGlobals();
  });
  it("stays closed when stopped, and is retried at once when asked", () => {
    const { live } = begin();
    FakeSource.made[0].dispatchEvent(new Event("error"));
    live.retry();
    expect(FakeSource.made).toHaveLength(2);
    live.retry();
    expect(FakeSource.made).toHaveLength(2);
    live.stop();
    FakeSource.made[1].dispatchEvent(new Event("error"));
    vi.advanceTimersByTime(60_000);
    expect(FakeSource.made).toHaveLength(2);
  });
});
