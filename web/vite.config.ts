import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

/** In development, the server's token goes with every request; see `just web-dev`. */
function identity(): Record<string, string> {
  return process.env.QUIRE_TOKEN ? { Authorization: `Bearer ${process.env.QUIRE_TOKEN}` } : {};
}

export default defineConfig({
  plugins: [svelte()],
  base: "./",
  build: {
    outDir: "../src/quire/server/static",
    emptyOutDir: true,
    target: "es2023",
    // The polyfill is an inline script, which the policy of the pages would refuse.
    modulePreload: { polyfill: false },
    // A file inlined as a data address would need a wider policy.
    assetsInlineLimit: 0,
    // Their licenses ask that the notices travel with the bundled code.
    license: { fileName: "third-party-licenses.md" },
  },
  server: { proxy: { "/api": { target: process.env.QUIRE_SERVER ?? "http://127.0.0.1:8300", headers: identity() } } },
  test: { include: ["test/**/*.test.ts"], environment: "node" },
});
