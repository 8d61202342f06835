// Builds dist/: the dashboard's files, and the report as one file with placeholders for its title and data.
// The result depends on the sources and package-lock.json only, so that a check can rebuild and compare it.

import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { resolve } from "node:path";
import { build } from "vite";

const root = fileURLToPath(new URL(".", import.meta.url));
const out = resolve(root, process.argv[2] ?? "dist");

/** Names that other files rely on: no hashes, the server sends an entity tag instead. */
const names = { entryFileNames: "[name].js", chunkFileNames: "[name].js", assetFileNames: "[name][extname]" };

/** Script and styles of one entry, in memory. */
async function bundle(entry, name) {
  const [result] = [
    await build({
      root,
      configFile: false,
      logLevel: "warn",
      build: {
        write: false,
        target: "es2022",
        modulePreload: false,
        cssCodeSplit: false,
        reportCompressedSize: false,
        rolldownOptions: { input: { [name]: resolve(root, entry) }, output: { ...names, format: "iife" } },
      },
    }),
  ].flat();
  const find = (end) => result.output.find((file) => file.fileName.endsWith(end));
  const script = find(".js");
  const styles = find(".css");
  return { script: script.code, styles: styles ? String(styles.source) : "" };
}

/** Nothing in a script or style may end the element that it stands in. */
const inline = (text) => text.replaceAll("</", "<\\/").trim();

async function report() {
  const { script, styles } = await bundle("src/report/main.ts", "report");
  const template = await readFile(resolve(root, "src/report/report.html"), "utf8");
  const page = template
    .replace("<!-- style -->", () => `<style>${inline(styles)}</style>`)
    .replace("<!-- script -->", () => `<script>${inline(script)}</script>`);
  for (const mark of ["__TITLE__", "__DATA__"]) {
    if (page.split(mark).length !== 2) throw new Error(`the report must have ${mark} exactly once`);
  }
  await writeFile(resolve(out, "report.html"), page);
}

async function dashboard() {
  const { script, styles } = await bundle("src/dashboard/main.tsx", "dashboard");
  await writeFile(resolve(out, "dashboard.js"), script);
  await writeFile(resolve(out, "dashboard.css"), styles);
  await writeFile(resolve(out, "dashboard.html"), await readFile(resolve(root, "src/dashboard/dashboard.html")));
}

await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
await report();
if (existsSync(resolve(root, "src/dashboard/main.tsx"))) await dashboard();
