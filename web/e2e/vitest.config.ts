import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    root: import.meta.dirname,
    include: ["*.e2e.ts"],
    testTimeout: 90_000,
    hookTimeout: 90_000,
    // Browsers and daemons share a few cores: one after the other.
    fileParallelism: false,
    sequence: { concurrent: false },
  },
});
