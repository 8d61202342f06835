// A table of many rows: only those in sight are in the document.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

export interface Column<R> {
  name: string;
  cell(row: R): ComponentChildren;
  /** Numbers stand on the right. */
  right?: boolean;
  class?: string;
  /** Left out where there is little room; the page of the job has it. */
  wide?: boolean;
}

interface TableProps<R> {
  label: string;
  rows: readonly R[];
  columns: readonly Column<R>[];
  keyOf(row: R): string | number;
  empty: string;
}

const classOf = <R,>({ right, wide }: Column<R>, own?: string): string | undefined =>
  [right ? "right" : "", wide ? "wide" : "", own ?? ""].filter(Boolean).join(" ") || undefined;

const ROW = 34;
/** Rows beyond the edges, so that a scroll of one frame shows no gap. */
const SPARE = 14;
/** The rows in the document change after this many have gone by, not with every pixel. */
const STRIDE = 8;
/** Up to here the table is drawn as it is. */
const PLAIN_MAX = 60;

export function BigTable<R>({ label, rows, columns, keyOf, empty }: TableProps<R>) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0); // in strides
  const [height, setHeight] = useState(400);
  const isPlain = rows.length <= PLAIN_MAX;
  useEffect(() => {
    const node = box.current;
    if (!node) return undefined;
    const measure = () => setHeight(node.clientHeight);
    const observer = new ResizeObserver(measure);
    observer.observe(node);
    measure();
    return () => observer.disconnect();
  }, []);
  const first = isPlain ? 0 : Math.max(0, top * STRIDE - SPARE);
  const last = isPlain ? rows.length : Math.min(rows.length, (top + 1) * STRIDE + Math.ceil(height / ROW) + SPARE);
  const shown = rows.slice(first, last);
  if (!rows.length) return <p class="soft">{empty}</p>;
  return (
    <div
      class="scroll tall"
      tabIndex={0}
      role="group"
      aria-label={label}
      ref={box}
      onScroll={(event) => setTop(Math.floor(event.currentTarget.scrollTop / ROW / STRIDE))}
    >
      <table aria-rowcount={rows.length + 1}>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((column) => (
              <th key={column.name} scope="col" class={classOf(column)}>
                {column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {first > 0 ? <Gap rows={first} columns={columns.length} /> : null}
          {shown.map((row, i) => (
            <tr key={keyOf(row)} aria-rowindex={first + i + 2}>
              {columns.map((column) => (
                <td key={column.name} class={classOf(column, column.class)}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
          {last < rows.length ? <Gap rows={rows.length - last} columns={columns.length} /> : null}
        </tbody>
      </table>
    </div>
  );
}

/** As much room as the rows that are left out would take. */
function Gap({ rows, columns }: { rows: number; columns: number }) {
  const node = useRef<HTMLTableCellElement>(null);
  useEffect(() => {
    node.current?.style.setProperty("height", rows * ROW + "px");
  }, [rows]);
  return (
    <tr class="gap" aria-hidden="true">
      <td colSpan={columns} ref={node} />
    </tr>
  );
}
