// Requests to the daemon, by way of the server that sent this page.

import type { ErrorAnswer } from "../api/types.ts";

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code: string,
  ) {
    super(message);
  }
}

type Query = Record<string, string | number | boolean | null | undefined>;

export function address(path: string, query: Query = {}): string {
  const parts = Object.entries(query).flatMap(([key, value]) =>
    value === null || value === undefined ? [] : [`${key}=${encodeURIComponent(value)}`],
  );
  return path + (parts.length ? "?" + parts.join("&") : "");
}

async function refusal(response: Response): Promise<ApiError> {
  try {
    const { error } = (await response.json()) as ErrorAnswer;
    return new ApiError(error.message, response.status, error.code);
  } catch {
    return new ApiError(`the daemon answered with status ${response.status}`, response.status, "internal");
  }
}

async function ask(path: string, options: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError("the daemon cannot be reached", 0, "unreachable");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

export async function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  return (await (await ask(address(path, query), signal ? { signal } : {})).json()) as T;
}

export async function post<T>(path: string, body?: unknown): Promise<T> {
  const options: RequestInit = { method: "POST" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "content-type": "application/json" };
  }
  return (await (await ask(path, options)).json()) as T;
}

export async function remove<T>(path: string): Promise<T> {
  return (await (await ask(path, { method: "DELETE" })).json()) as T;
}
