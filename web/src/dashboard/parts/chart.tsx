// A place for a chart that is drawn by hand.

import { useEffect, useRef } from "preact/hooks";

interface ChartProps {
  /** Draws into the host; called again when its width or the colours change. */
  draw(host: HTMLElement): void;
  /** Anything that changes with what is drawn. */
  of: unknown;
  class?: string;
}

/** Calls back when a host's width changes or the page turns dark or light. */
export function onRedraw(host: HTMLElement, draw: () => void): () => void {
  let width = host.clientWidth;
  const observer = new ResizeObserver(() => {
    if (host.clientWidth === width) return;
    width = host.clientWidth;
    draw();
  });
  observer.observe(host);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw);
  return () => {
    observer.disconnect();
    dark.removeEventListener("change", draw);
  };
}

export function Chart({ draw, of, class: name }: ChartProps) {
  const host = useRef<HTMLDivElement>(null);
  const latest = useRef(draw);
  latest.current = draw;
  useEffect(() => {
    if (host.current) latest.current(host.current);
  }, [of]);
  useEffect(() => {
    const node = host.current;
    return node ? onRedraw(node, () => latest.current(node)) : undefined;
  }, []);
  return <div class={"plot " + (name ?? "")} ref={host} />;
}
