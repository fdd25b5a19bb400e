// Builds the package that npm publishes: build/ringfence-client-VERSION.tgz. The version is RINGFENCE_VERSION, else that of the git
// tag vVERSION at HEAD, else 0.0.0-COMMIT.
import { execFileSync } from "node:child_process";
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const folder = join(root, "build/package");
const run = (file, args, cwd = root) => execFileSync(file, args, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] }).trim();

const version = versionOf();
rmSync(folder, { recursive: true, force: true });
mkdirSync(folder, { recursive: true });
run(process.execPath, [join(root, "node_modules/typescript/bin/tsc"), "-p", "tsconfig.build.json", "--outDir", join(folder, "dist")]);
const versionFile = join(folder, "dist/version.js");
const versioned = readFileSync(versionFile, "utf8").replace("/0.0.0-dev", `/${version}`);
if (!versioned.includes(`/${version}"`)) throw new Error("dist/version.js has no version to set");
writeFileSync(versionFile, versioned);
const { scripts: _, devDependencies: __, ...manifest } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
writeFileSync(join(folder, "package.json"), `${JSON.stringify({ ...manifest, version }, null, 2)}\n`);
cpSync(join(root, "README.md"), join(folder, "README.md"));
cpSync(join(root, "../../LICENSE"), join(folder, "LICENSE"));
const packed = run("npm", ["pack", "--silent", "--pack-destination", join(root, "build")], folder);
console.log(join("build", packed.split("\n").at(-1)));

function versionOf() {
  const wanted = process.env.RINGFENCE_VERSION || git("describe", "--tags", "--exact-match", "--match", "v[0-9]*") || `0.0.0-${git("rev-parse", "--short=12", "HEAD")}`;
  const version = wanted.replace(/^v/, "");
  if (!/^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$/.test(version)) {
    console.error(`${JSON.stringify(version)} is no version: set RINGFENCE_VERSION to one such as 1.2.3`);
    process.exit(1);
  }
  return version;
}

/** Returns what git says, or "". */
function git(...args) {
  try {
    return execFileSync("git", args, { cwd: root, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }).trim();
  } catch {
    return "";
  }
}
