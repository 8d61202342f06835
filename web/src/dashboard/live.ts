// The stream of events. A stream that breaks is opened again, later and later, until the daemon is back; then everything
// is read anew, because what happened meanwhile may not have been kept.

export type Connection = "connecting" | "live" | "lost";

export interface Handlers {
  /** The stream is open: read what there is. Called again after every break. */
  opened(): void;
  state(connection: Connection): void;
  event(kind: string, data: unknown): void;
}

export interface LiveOptions {
  url: string;
  kinds: readonly string[];
  /** For tests. */
  source?: (url: string) => EventSource;
}

const FIRST_DELAY_MS = 250;
const LAST_DELAY_MS = 5000;
/** The daemon says at least every 15 s that it is there; a stream that is silent for longer is dead. */
const SILENCE_MS = 40_000;

export class Live {
  private source: EventSource | null = null;
  private delay = FIRST_DELAY_MS;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private silence: ReturnType<typeof setTimeout> | undefined;
  private stopped = false;

  constructor(
    private readonly options: LiveOptions,
    private readonly handlers: Handlers,
  ) {}

  start(): void {
    if (this.source) return;
    this.stopped = false;
    this.handlers.state("connecting");
    this.retry();
  }

  stop(): void {
    this.stopped = true;
    this.close();
    clearTimeout(this.timer);
  }

  /** Tries at once instead of waiting for the next attempt. */
  retry(): void {
    if (this.source || this.stopped) return;
    clearTimeout(this.timer);
    this.delay = FIRST_DELAY_MS;
    this.open();
  }

  private open(): void {
    const { url, kinds, source: make } = this.options;
    const source = make ? make(url) : new EventSource(url);
    this.source = source;
    source.addEventListener("open", () => {
      this.delay = FIRST_DELAY_MS;
      this.listenForSilence();
      this.handlers.state("live");
      this.handlers.opened();
    });
    source.addEventListener("error", () => this.lost());
    for (const kind of kinds) {
      source.addEventListener(kind, (event) => {
        this.listenForSilence();
        const data = parse((event as MessageEvent<string>).data);
        if (data !== undefined) this.handlers.event(kind, data);
      });
    }
  }

  private listenForSilence(): void {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => this.lost(), SILENCE_MS);
  }

  private close(): void {
    clearTimeout(this.silence);
    this.source?.close();
    this.source = null;
  }

  private lost(): void {
    if (this.stopped || !this.source) return;
    this.close();
    this.handlers.state("lost");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), this.delay);
    this.delay = Math.min(LAST_DELAY_MS, this.delay * 2);
  }
}

/** The stream of a tab that nobody sees is closed after this. */
const HIDDEN_MS = 5000;

/**
 * Keeps a stream open while the page is in sight. A browser opens six connections to a server for all tabs together, and
 * each stream takes one for good: tabs in the background would lock out the one that is looked at. Returns what ends it.
 */
export function whileVisible(live: Live): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const follow = () => {
    clearTimeout(timer);
    if (document.visibilityState === "visible") live.start();
    else timer = setTimeout(() => live.stop(), HIDDEN_MS);
  };
  document.addEventListener("visibilitychange", follow);
  if (document.visibilityState === "visible") live.start();
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", follow);
    live.stop();
  };
}

/** A line that is no JSON is passed over. */
function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
