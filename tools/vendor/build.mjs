// Writes the bundle of the HTML report's libraries, and their licences: npm ci --ignore-scripts && node build.mjs
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const TARGET = "../../exporter/gpufrag/reports/html/vendor";
const result = await build({
  entryPoints: ["entry.js"],
  bundle: true,
  minify: true,
  format: "iife",
  globalName: "vendor",
  legalComments: "none", // LICENSES.txt has them
  charset: "ascii", // a report's encoding cannot change it
  metafile: true,
  outfile: `${TARGET}/vendor.js`,
});
const bundled = Object.keys(result.metafile.inputs).map((path) => path.match(/^node_modules\/([^/]+)\//)?.[1]);
const texts = [...new Set(bundled.filter(Boolean))].sort().map((name) => {
  const folder = `node_modules/${name}`;
  const { version, license } = JSON.parse(readFileSync(`${folder}/package.json`));
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  return `${name} ${version} (${license})\n\n${readFileSync(`${folder}/${file}`, "utf8").trim()}\n`;
});
writeFileSync(`${TARGET}/LICENSES.txt`, texts.join(`\n${"-".repeat(80)}\n\n`));
