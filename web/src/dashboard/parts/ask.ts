// Data of a page that is read on demand.

import { useEffect, useState } from "preact/hooks";
import { ApiError, get } from "../api.ts";

export interface Asked<T> {
  data: T | null;
  error: string | null;
}

/** Reads a path, and again when `again` changes; an answer that comes too late is dropped. */
export function useAsk<T>(path: string | null, query: Record<string, string | number>, again: unknown): Asked<T> {
  const [asked, setAsked] = useState<Asked<T> & { path: string | null }>({ data: null, error: null, path });
  const text = JSON.stringify(query);
  useEffect(() => {
    if (path === null) return undefined;
    const own = new AbortController();
    get<T>(path, JSON.parse(text) as Record<string, string | number>, own.signal)
      .then((data) => {
        if (!own.signal.aborted) setAsked({ data, error: null, path });
        return undefined;
      })
      .catch((error: unknown) => {
        if (own.signal.aborted) return;
        const message = error instanceof ApiError ? error.message : String(error);
        setAsked((before) => ({ data: before.path === path ? before.data : null, error: message, path }));
      });
    return () => own.abort();
  }, [path, text, again]);
  // What belongs to another path is not shown.
  return asked.path === path ? asked : { data: null, error: null };
}
