// Which page is shown, by the part of the address after #.

import { signal } from "@preact/signals";

export type Route =
  | { page: "overview" | "jobs" | "pairs" | "what-if" | "users" | "health" | "unknown" }
  | { page: "job"; id: number };

export function parseRoute(hash: string): Route {
  const parts = hash.replace(/^#\/?/, "").split("/");
  if (parts[0] === "") return { page: "overview" };
  if (parts[0] === "job" && /^\d{1,15}$/.test(parts[1] ?? "") && parts.length === 2) return { page: "job", id: Number(parts[1]) };
  const known = ["jobs", "pairs", "what-if", "users", "health"] as const;
  const page = known.find((name) => name === parts[0]);
  return parts.length === 1 && page ? { page } : { page: "unknown" };
}

export const route = signal<Route>({ page: "overview" });

export const jobLink = (id: number): string => `#/job/${id}`;

export function followAddress(): void {
  const update = () => {
    route.value = parseRoute(location.hash);
  };
  addEventListener("hashchange", update);
  update();
}
