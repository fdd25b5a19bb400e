// Writes src/gen from proto/, or with --check fails if src/gen is not up to date.
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const committed = join(root, "src/gen");
const made = join(root, "build/gen");
rmSync(made, { recursive: true, force: true });
mkdirSync(made, { recursive: true });
const template = {
  version: "v2",
  plugins: [{ local: [process.execPath, join(root, "node_modules/@bufbuild/protoc-gen-es/bin/protoc-gen-es")], out: made, opt: ["target=ts", "import_extension=js"] }],
};
const proto = join(root, "../../proto");
execFileSync(join(root, "node_modules/.bin/buf"), ["generate", proto, "--path", join(proto, "ringfence/app/v1"), "--path", join(proto, "ringfence/lane/v1"), "--template", JSON.stringify(template)], { stdio: "inherit" });

if (!process.argv.includes("--check")) {
  rmSync(committed, { recursive: true, force: true });
  cpSync(made, committed, { recursive: true });
} else {
  const files = (folder) => readdirSync(folder, { recursive: true, withFileTypes: true }).filter((f) => f.isFile()).map((f) => join(f.parentPath ?? f.path, f.name).slice(folder.length));
  const stale = new Set([...files(made), ...files(committed)].filter((f) => read(made + f) !== read(committed + f)));
  if (stale.size > 0) {
    console.error(`not up to date: ${[...stale].map((f) => `src/gen${f}`).join(", ")}; run: npm run generate`);
    process.exit(1);
  }
}

function read(file) {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return undefined;
  }
}
