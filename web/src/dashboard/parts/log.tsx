// The end of what a job prints, as it is printed. Whatever is in it is shown as text.

import { useEffect, useRef, useState } from "preact/hooks";
import type { JobInfo, LogPart } from "../../api/types.ts";
import { Live, whileVisible } from "../live.ts";

/** Characters that are kept. */
const KEPT = 100_000;

export function keep(before: string, part: LogPart): string {
  const all = part.restart ? part.text : before + part.text;
  if (all.length <= KEPT) return all;
  const end = all.slice(-KEPT);
  return end.slice(end.indexOf("\n") + 1);
}

/** Colours and cursor movements of terminals, which say nothing here, and signs that are not seen. */
export const plain = (text: string): string =>
  text
    // eslint-disable-next-line no-control-regex
    .replace(/\u001b\[[0-9;?]*[ -/]*[@-~]/g, "")
    .replace(/\r\n/g, "\n")
    .replace(/[^\n]*\r(?=[^\n])/g, "")
    // eslint-disable-next-line no-control-regex
    .replace(/[\u0000-\u0008\u000b-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g, "");

export function LogTail({ job }: { job: JobInfo }) {
  const [text, setText] = useState("");
  const [stream, setStream] = useState<"stdout" | "stderr">("stdout");
  const [follows, setFollows] = useState(true);
  const node = useRef<HTMLPreElement>(null);
  const isOwn = Boolean(job.private);
  useEffect(() => {
    if (!isOwn) return undefined;
    setText("");
    const live = new Live(
      { url: `/v1/jobs/${job.id}/logs/tail?stream=${stream}`, kinds: ["log", "ping"] },
      {
        opened: () => undefined,
        state: () => undefined,
        event: (kind, data) => {
          if (kind === "log") setText((before) => keep(before, data as LogPart));
        },
      },
    );
    return whileVisible(live);
  }, [job.id, stream, isOwn]);
  useEffect(() => {
    if (follows && node.current) node.current.scrollTop = node.current.scrollHeight;
  }, [text, follows]);
  if (!isOwn) return null;
  return (
    <section aria-labelledby="h-log">
      <div class="head">
        <h2 id="h-log">Log</h2>
        <div class="bar">
          <label>
            Stream{" "}
            <select value={stream} onChange={(event) => setStream(event.currentTarget.value as "stdout" | "stderr")}>
              <option value="stdout">output</option>
              <option value="stderr">errors</option>
            </select>
          </label>
          <label>
            <input type="checkbox" checked={follows} onChange={(event) => setFollows(event.currentTarget.checked)} /> Follow
          </label>
        </div>
      </div>
      <pre class="log" ref={node} tabIndex={0} aria-label="End of the log">
        {plain(text) || "Nothing printed yet."}
      </pre>
    </section>
  );
}
