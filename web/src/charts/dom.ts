// Elements without markup: text from users goes through text nodes and setAttribute, so that no name can become an
// element. Styles go through the CSSOM, because a strict content security policy refuses style attributes.

export type Style = Record<string, string | number>;
type Attribute = string | number | boolean | null | undefined | Style | ((event: never) => void);
export type Attributes = Record<string, Attribute>;
export type Child = Node | string | null | undefined;

const SVG = "http://www.w3.org/2000/svg";

type Styled = Element & ElementCSSInlineStyle;

export function fill<E extends Styled>(node: E, attributes: Attributes, children: readonly Child[] = []): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value as EventListener);
    else if (typeof value === "object") setStyle(node, value);
    else node.setAttribute(name, String(value));
  }
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}

export function setStyle(node: ElementCSSInlineStyle, style: Style): void {
  for (const [name, value] of Object.entries(style)) node.style.setProperty(name, String(value));
}

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  return fill(document.createElement(tag), attributes, children);
}

export function sv<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export const clamp = (x: number, low: number, high: number): number => Math.max(low, Math.min(high, x));

/** `Math.max(...list)` overflows the stack on long lists. */
export const greatest = (list: readonly number[], start: number): number =>
  list.reduce((most, x) => (x > most ? x : most), start);
export const least = (list: readonly number[], start: number): number =>
  list.reduce((most, x) => (x < most ? x : most), start);

/** The value of a colour variable of the page, for canvases. */
export const css = (name: string): string =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();
