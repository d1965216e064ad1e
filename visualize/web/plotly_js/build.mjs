/* Builds plotly.min.js with only the traces that the page draws, without styles of maps:
npm install plotly.js@4.1.1 esbuild esbuild-plugin-inline-css esbuild-plugin-environment stream-browserify && node build.mjs
The version must be plotly.py's. */
import { build } from "esbuild";
import { environmentPlugin } from "esbuild-plugin-environment";
import InlineCSS from "esbuild-plugin-inline-css";

const { version } = (await import("plotly.js/package.json", { with: { type: "json" } })).default;
const traces = ["bar", "heatmap"]; // "scatter" is always included
const required = traces.map((trace) => `require("plotly.js/lib/${trace}")`);
const withoutMaps = {
  name: "without-maps",
  setup: (bundle) => bundle.onLoad({ filter: /maplibre-gl\.css$/ }, () => ({ contents: "", loader: "js" })),
};
await build({
  stdin: {
    contents: `const plotly = require("plotly.js/lib/core"); plotly.register([${required}]); module.exports = plotly;`,
    resolveDir: ".",
  },
  format: "iife",
  globalName: "Plotly",
  bundle: true,
  minify: true,
  outfile: "plotly.min.js",
  alias: { stream: "stream-browserify" },
  define: { global: "window", "define.amd": "false" },
  target: "es2020",
  plugins: [withoutMaps, (InlineCSS.default ?? InlineCSS)(), environmentPlugin({ NODE_DEBUG: false })],
  banner: {
    js: `/* plotly.js (scatter, ${traces.join(", ")}) v${version}, copyright Plotly, Inc., MIT license: see LICENSE. */`,
  },
});
