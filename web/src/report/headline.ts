// The sentence at the top: what sharing gains over the best that does not share.

import { NB, dur, pct } from "../charts/format.ts";
import type { Run, Standing } from "./data.ts";

/** Text and names; a name is set off. */
export type Words = (string | { name: string })[];

const name = (run: Run) => ({ name: run.policy });
const mean = (run: Run): number => run.metrics.avg_jct_s;

/** How much less, or more, in words. */
export function compared(value: number, reference: number): string {
  if (value === reference) return "as much as";
  const change = Math.abs(1 - value / reference);
  const amount = change < 0.0005 ? "less than 0.1" + NB + "%" : pct(change);
  return `${amount} ${value < reference ? "less" : "more"} than`;
}

export function headline(runs: readonly Run[], { hero, best, base }: Standing): Words {
  const took = `a mean job completion time of ${dur(mean(hero))}`;
  if (runs.length === 1) return ["Under ", name(hero), ` a job takes ${dur(mean(hero))} on average, from submission to completion.`];
  if (runs.every((run) => mean(run) === mean(hero))) {
    return [`All ${runs.length} policies have the same mean job completion time, ${dur(mean(hero))}.`];
  }
  const words: Words = [name(hero), ` has ${took}`];
  const reference = base && base !== hero ? base : runnerUp(runs, hero);
  if (reference && mean(reference) > 0) {
    words.push(`, ${compared(mean(hero), mean(reference))} `, name(reference), role(reference, base, runs));
  }
  words.push(".");
  if (best !== hero && mean(best) < mean(hero) && best !== reference) {
    words.push(" The lowest is that of ", name(best), `, ${dur(mean(best))}.`);
  }
  return words;
}

/** The best of the others. */
function runnerUp(runs: readonly Run[], hero: Run): Run | null {
  const others = runs.filter((run) => run !== hero);
  return others.length ? others.reduce((a, b) => (mean(b) < mean(a) ? b : a)) : null;
}

function role(reference: Run, base: Run | null, runs: readonly Run[]): string {
  const value = dur(mean(reference));
  if (reference !== base) return `, the next best (${value})`;
  const others = runs.filter((run) => !run.shares).length;
  return `, ${others === 1 ? "the only policy" : "the best policy"} that does not share GPUs (${value})`;
}
