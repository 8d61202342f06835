// The frame of all pages.

import { useEffect, useRef } from "preact/hooks";
import { hideTip } from "../charts/tip.ts";
import { Health } from "./pages/health.tsx";
import { Job } from "./pages/job.tsx";
import { Jobs } from "./pages/jobs.tsx";
import { Overview } from "./pages/overview.tsx";
import { Pairs } from "./pages/pairs.tsx";
import { Users } from "./pages/users.tsx";
import { WhatIf } from "./pages/whatif.tsx";
import { route } from "./router.ts";
import type { Route } from "./router.ts";
import { connection, loaded, problem } from "./store.ts";

const PAGES: readonly (readonly [Route["page"], string, string])[] = [
  ["overview", "#/", "Overview"],
  ["jobs", "#/jobs", "Jobs"],
  ["pairs", "#/pairs", "Pairs"],
  ["what-if", "#/what-if", "What if"],
  ["users", "#/users", "Users"],
  ["health", "#/health", "Health"],
];

const TITLES: Record<Route["page"], string> = {
  overview: "Overview", jobs: "Jobs", job: "Job", pairs: "Pair rates", "what-if": "What if", users: "Users", health: "Health", unknown: "Not found",
};

export function App() {
  const at = route.value;
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  const title = at.page === "job" ? `Job ${at.id}` : TITLES[at.page];
  useEffect(() => {
    document.title = `${title} · Tandem`;
    hideTip();
    // A new page is read from its beginning.
    if (!first.current) {
      main.current?.focus();
      scrollTo(0, 0);
    }
    first.current = false;
  }, [title]);
  return (
    <>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          main.current?.focus();
        }}
      >
        Skip to the content
      </a>
      <header>
        <h1>
          <a href="#/">
            <svg class="mark" viewBox="0 0 24 24" width="22" height="22" aria-hidden="true">
              <rect x="2" y="4" width="15" height="7" rx="2" />
              <rect x="7" y="13" width="15" height="7" rx="2" />
            </svg>
            Tandem
          </a>
        </h1>
        <nav aria-label="Pages">
          {PAGES.map(([page, href, name]) => (
            <a key={page} href={href} aria-current={at.page === page ? "page" : undefined}>
              {name}
            </a>
          ))}
        </nav>
        <Status />
      </header>
      <main id="main" tabIndex={-1} ref={main}>
        {problem.value ? <p role="alert">{problem.value}</p> : null}
        {loaded.value ? <Shown at={at} /> : <p class="soft">Reading the state of the daemon…</p>}
      </main>
    </>
  );
}

function Shown({ at }: { at: Route }) {
  switch (at.page) {
    case "overview":
      return <Overview />;
    case "jobs":
      return <Jobs />;
    case "job":
      return <Job id={at.id} key={at.id} />;
    case "pairs":
      return <Pairs />;
    case "what-if":
      return <WhatIf />;
    case "users":
      return <Users />;
    case "health":
      return <Health />;
    default:
      return (
        <section>
          <h2>There is no such page</h2>
          <p>
            <a href="#/">Overview</a>
          </p>
        </section>
      );
  }
}

const WORDS = { connecting: "connecting", live: "live", lost: "no connection, trying again" };

function Status() {
  return (
    <p class={"status " + connection.value} role="status">
      <span class="dot" aria-hidden="true" />
      {WORDS[connection.value]}
    </p>
  );
}
