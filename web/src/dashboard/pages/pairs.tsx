// Learned rates of pairs of classes, with how sure they are.

import { useState } from "preact/hooks";
import type { ClassInfo, Classes } from "../../api/types.ts";
import { bytes, count, num } from "../../charts/format.ts";
import { heatMap, lowestRate, ratePatch, sayRate } from "../../charts/heat.ts";
import type { Rate } from "../../charts/heat.ts";
import { useAsk } from "../parts/ask.ts";
import { Chart } from "../parts/chart.tsx";
import { connection, recentlyOver } from "../store.ts";

/** More classes cannot be told apart; the best known are shown. */
const CLASSES_MAX = 60;

const measurements = (info: ClassInfo): number => Object.values(info.beside).reduce((sum, pair) => sum + pair.measurements, 0);

/** From 0, a guess, to 1, certain. */
const certainty = (uncertainty: number | null | undefined, count: number): number => {
  if (!count) return 0;
  if (uncertainty === null || uncertainty === undefined) return Math.min(1, count / 10);
  return Math.max(0.1, 1 - uncertainty / 0.2);
};

export function Pairs() {
  // Classes are learned when jobs run and end; nothing else changes them.
  const { data, error } = useAsk<Classes>("/v1/classes", {}, `${recentlyOver.value[0]?.id} ${connection.value}`);
  const [chosen, setChosen] = useState<readonly [string, string] | null>(null);
  if (!data) return <section>{error ? <p role="alert">{error}</p> : <p class="soft">Reading…</p>}</section>;
  const all = data.classes;
  const shown = [...all].sort((a, b) => measurements(b) - measurements(a) || b.finished - a.finished || (a.name < b.name ? -1 : 1)).slice(0, CLASSES_MAX);
  const names = shown.map(({ name }) => name);
  const pair = (a: number, b: number) => shown[a].beside[names[b]];
  const rate = (a: number, b: number): Rate => pair(a, b)?.rate ?? null;
  const low = lowestRate({ names, rate });
  const describe = (a: number, b: number) => {
    const known = pair(a, b);
    const rows = [sayRate(rate(a, b))];
    if (known) rows.push(sayCertainty(known.uncertainty, known.measurements));
    if (a !== b) rows.push(`${names[b]} beside ${names[a]}: ${sayRate(rate(b, a))}`);
    rows.push("click or Enter: the measurements");
    return { head: `${names[a]} beside ${names[b]}`, rows };
  };
  const draw = (host: HTMLElement) =>
    heatMap(host, {
      names,
      namesColumns: true,
      rate,
      certainty: (a, b) => certainty(pair(a, b)?.uncertainty, pair(a, b)?.measurements ?? 0),
      describe,
      open: (a, b) => setChosen([names[a], names[b]]),
      label: `Rates of ${num(names.length)} by ${num(names.length)} classes; arrow keys go from cell to cell, Enter shows the measurements.`,
      caption: "Class, beside the class of the column",
    });
  const keys: [string, Rate][] = [
    ["rate " + num(low, 2), low],
    ["rate " + num((1 + low) / 2, 2), (1 + low) / 2],
    ["full speed", 0.9999],
    ["faster than alone", 1.2],
    ["never shared", null],
  ];
  return (
    <>
      <section aria-labelledby="h-pairs">
        <h2 id="h-pairs">Pair rates</h2>
        <p class="lead">
          How fast the class of a row runs beside the class of a column, relative to running alone. A dot is a measured pair, a larger dot a more
          certain one; without a dot the rate is predicted.
          {shown.length < all.length ? ` The ${num(shown.length)} best known of ${num(all.length)} classes.` : ""}
        </p>
        {names.length ? <Chart draw={draw} of={data} /> : <p class="soft">No class has run yet.</p>}
        <p class="legend">
          {keys.map(([text, value]) => (
            <Key key={text} text={text} rate={value} low={low} />
          ))}
        </p>
      </section>
      {chosen ? <Measurements classes={all} pair={chosen} /> : null}
      <ClassTable classes={shown} />
    </>
  );
}

function Key({ text, rate, low }: { text: string; rate: Rate; low: number }) {
  return (
    <span class="key">
      <span ref={(node) => node?.replaceChildren(ratePatch(rate, low))} />
      {text}
    </span>
  );
}

const sayCertainty = (uncertainty: number | null | undefined, measured: number): string =>
  measured
    ? count(measured, "measurement") + (uncertainty === null || uncertainty === undefined ? "" : `, ± ${num(uncertainty, 3)}`)
    : "predicted, not measured";

function Measurements({ classes, pair: [a, b] }: { classes: readonly ClassInfo[]; pair: readonly [string, string] }) {
  const known = classes.find(({ name }) => name === a)?.beside[b];
  return (
    <section aria-labelledby="h-measurements" aria-live="polite">
      <h2 id="h-measurements">
        {a} beside {b}
      </h2>
      {known ? (
        <>
          <p>
            {sayRate(known.rate)}; {sayCertainty(known.uncertainty, known.measurements)}.
          </p>
          {known.recent?.length ? (
            <>
              <p>Measured rates, the latest last:</p>
              <ol class="measurements">
                {known.recent.map((value, i) => (
                  // Equal values may follow each other.
                  // oxlint-disable-next-line react/no-array-index-key
                  <li key={i}>{num(value, 3)}</li>
                ))}
              </ol>
            </>
          ) : null}
        </>
      ) : (
        <p>These classes have not shared a GPU yet, and no rate is believed.</p>
      )}
    </section>
  );
}

function ClassTable({ classes }: { classes: readonly ClassInfo[] }) {
  return (
    <section aria-labelledby="h-classes">
      <h2 id="h-classes">Classes</h2>
      <div class="scroll" tabIndex={0} role="group" aria-label="Classes">
        <table>
          <thead>
            <tr>
              <th scope="col">Class</th>
              <th scope="col" class="right">Memory</th>
              <th scope="col" class="right">Steps per second alone</th>
              <th scope="col" class="right">Jobs finished</th>
            </tr>
          </thead>
          <tbody>
            {classes.map((known) => (
              <tr key={known.name}>
                <th scope="row">{known.name}</th>
                <td class="right">{known.memory_bytes ? bytes(known.memory_bytes) : "–"}</td>
                <td class="right">
                  {Object.entries(known.steps_per_s).map(([parts, speed]) => `${num(speed, 1)}${parts === "1" ? "" : ` in ${parts} parts`}`).join(", ") || "–"}
                </td>
                <td class="right">{num(known.finished)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
