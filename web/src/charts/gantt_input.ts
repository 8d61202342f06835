// Pointer, touch, wheel and keys of the Gantt chart.

import { fill } from "./dom.ts";
import type { Gantt, Segment } from "./gantt.ts";

type Grip =
  | { mode: "band"; x: number }
  | { mode: "pan"; x: number; view: readonly [number, number] }
  | { mode: "pinch"; gap: number };

export function addGanttInput<S extends Segment>(gantt: Gantt<S>): void {
  const { canvas } = gantt;
  const touches = new Map<number, number>();
  let grip: Grip | null = null;
  let band: readonly [number, number] | null = null;
  let moved = false;

  const gap = (): number => {
    const [a, b] = [...touches.values()];
    return Math.max(12, Math.abs(a - (b ?? a)));
  };
  const setBand = (next: readonly [number, number] | null) => {
    band = next;
    gantt.setBand(next);
  };

  const down = (event: PointerEvent) => {
    const [x, y] = gantt.place(event);
    touches.set(event.pointerId, x);
    canvas.focus({ preventScroll: true });
    moved = false;
    if (event.pointerType === "mouse") {
      grip = event.button ? null : { mode: "band", x };
      canvas.setPointerCapture(event.pointerId);
    } else grip = touches.size > 1 ? { mode: "pinch", gap: gap() } : { mode: "pan", x, view: gantt.view };
    gantt.pick(gantt.hit(x, y), event.clientX, event.clientY);
  };

  const move = (event: PointerEvent) => {
    const [x, y] = gantt.place(event);
    if (touches.has(event.pointerId)) touches.set(event.pointerId, x);
    if (!grip || !touches.size) return gantt.pick(gantt.hit(x, y), event.clientX, event.clientY);
    if (grip.mode === "pinch") {
      if (touches.size < 2) return;
      const [a, b] = [...touches.values()];
      const now = gap();
      gantt.zoom(now / grip.gap, gantt.timeAt((a + b) / 2));
      grip.gap = now;
      return;
    }
    if (Math.abs(x - grip.x) < 4 && !moved) return;
    moved = true;
    if (grip.mode === "band") return setBand([gantt.inside(grip.x), gantt.inside(x)]);
    const shift = ((grip.x - x) / gantt.plotWidth) * (grip.view[1] - grip.view[0]);
    gantt.forget();
    gantt.setView(grip.view[0] + shift, grip.view[1] + shift);
  };

  const up = (event: PointerEvent) => {
    touches.delete(event.pointerId);
    const chosen = band;
    grip = null;
    setBand(null);
    if (!chosen || Math.abs(chosen[1] - chosen[0]) <= 5) return;
    gantt.setView(gantt.timeAt(Math.min(...chosen)), gantt.timeAt(Math.max(...chosen)));
  };

  const keys: Record<string, () => void> = {
    "+": () => gantt.zoom(1.6),
    "=": () => gantt.zoom(1.6),
    "-": () => gantt.zoom(1 / 1.6),
    "0": () => gantt.reset(),
    Escape: () => canvas.blur(),
  };

  fill(canvas, {
    onpointerdown: down,
    onpointermove: move,
    onpointerup: up,
    onpointercancel: (event: PointerEvent) => {
      touches.delete(event.pointerId);
      grip = null;
      setBand(null);
    },
    onpointerleave: (event: PointerEvent) => {
      if (event.pointerType === "mouse" && !grip) gantt.pick(null);
    },
    onclick: () => {
      if (!moved) gantt.open();
    },
    ondblclick: (event: MouseEvent) => gantt.zoom(2, gantt.timeAt(gantt.place(event)[0])),
    onblur: () => gantt.pick(null),
    onkeydown: (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const act = keys[event.key];
      if (act) {
        event.preventDefault();
        return act();
      }
      if (event.key === "Enter" && gantt.open()) return event.preventDefault();
      if (!event.key.startsWith("Arrow") && event.key !== "Home" && event.key !== "End") return;
      event.preventDefault();
      gantt.walk(event.key);
    },
  });

  // The wheel alone scrolls the page until the reader has taken hold of the chart; a tall chart would otherwise be a trap.
  const wheel = (event: WheelEvent) => {
    const held = event.ctrlKey || event.metaKey || document.activeElement === canvas;
    if (!held || (event.deltaY > 0 && gantt.hasWholeExtent)) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) gantt.pan(event.deltaX / gantt.plotWidth);
    else gantt.zoom(Math.exp(-event.deltaY * 0.0022), gantt.timeAt(gantt.inside(gantt.place(event)[0])));
  };
  canvas.addEventListener("wheel", wheel, { passive: false });
}
