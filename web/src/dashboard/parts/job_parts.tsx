// Small things about jobs that several pages show.

import type { JobState } from "../../api/types.ts";
import { rateColour } from "../../charts/palette.ts";
import { jobLink } from "../router.ts";
import { sayRate, sayState } from "../words.ts";
import { useEffect, useRef } from "preact/hooks";

export const State = ({ state }: { state: JobState }) => <span class={"state " + state}>{sayState(state)}</span>;

export const JobLink = ({ id, name }: { id: number; name?: string | undefined }) => (
  <a href={jobLink(id)} title={name}>
    {name === undefined ? `job ${id}` : `${id} ${name}`}
  </a>
);

/** Links to several jobs. */
export function JobLinks({ ids }: { ids: readonly number[] }) {
  if (!ids.length) return <>–</>;
  const shown = ids.slice(0, 12);
  return (
    <>
      {shown.map((id, i) => (
        <span key={id}>
          {i ? ", " : ""}
          <a href={jobLink(id)}>{id}</a>
        </span>
      ))}
      {ids.length > shown.length ? ` and ${ids.length - shown.length} more` : ""}
    </>
  );
}

/** A rate with its colour. */
export function Rate({ rate, measured }: { rate: number | null | undefined; measured: boolean }) {
  if (rate === null || rate === undefined) return <>–</>;
  return (
    <span class="rate" title={measured ? "measured" : "predicted"}>
      <Patch colour={rateColour(rate)} />
      {sayRate(rate)}
      <span class="soft">{measured ? "" : " predicted"}</span>
    </span>
  );
}

/** A part of a whole as a bar; the text beside it says the same. */
export function Meter({ share }: { share: number }) {
  const node = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    node.current?.style.setProperty("width", `${Math.round(Math.min(1, Math.max(0, share)) * 100)}%`);
  }, [share]);
  return (
    <span class="meter" aria-hidden="true">
      <span ref={node} />
    </span>
  );
}

/** A square of a colour: set through the CSSOM, which the content security policy allows. */
export function Patch({ colour }: { colour: string }) {
  const node = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    node.current?.style.setProperty("background", colour);
  }, [colour]);
  return <span class="patch" ref={node} aria-hidden="true" />;
}
