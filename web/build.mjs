// Builds the dashboard's pages into the Python package. The same sources and the same lock give the same files.
import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "../src/virtfleet/dashboard/static");

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
const { metafile } = await build({
  absWorkingDir: here,
  entryPoints: ["src/main.tsx"],
  bundle: true,
  splitting: true,
  minify: true,
  format: "esm",
  target: "es2022",
  outdir: out,
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  metafile: true,
  legalComments: "none",
  jsx: "automatic",
  jsxImportSource: "preact",
  supported: { "top-level-await": true },
  logLevel: "warning",
});
const entry = Object.entries(metafile.outputs).find(([, made]) => made.entryPoint === "src/main.tsx");
const name = (path) => path.split("/").pop();
writeFileSync(
  join(out, "index.html"),
  readFileSync(join(here, "index.html"), "utf8")
    .replace("@SCRIPT@", name(entry[0]))
    .replace("@STYLE@", name(entry[1].cssBundle)),
);

// What it was built from: a test compares it, also where there is no npm.
const sources = [
  "build.mjs", "index.html", "package.json", "package-lock.json",
  ...readdirSync(join(here, "src")).map((file) => `src/${file}`),
].sort();
const digest = createHash("sha256");
for (const file of sources) digest.update(`${file}\0`).update(readFileSync(join(here, file))).update("\0");
writeFileSync(join(out, "SOURCES"), `${digest.digest("hex")}\n`);

// Libraries that are in it, with their licences' names.
const used = new Set(Object.keys(metafile.inputs).map((path) => /^node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1]));
const credits = [...used].filter(Boolean).sort().map((library) => {
  const about = JSON.parse(readFileSync(join(here, "node_modules", library, "package.json"), "utf8"));
  return `${about.name} ${about.version} (${about.license})`;
});
writeFileSync(join(out, "LIBRARIES"), `${credits.join("\n")}\n`);
