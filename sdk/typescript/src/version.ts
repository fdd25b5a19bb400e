import { readFileSync } from "node:fs";

const { version } = JSON.parse(readFileSync(findPackage(), "utf8")) as { version: string };

/** The name and version of this SDK, for the router's logs. */
export const sdk = `ringfence-typescript/${version}`;

/** The nearest package.json above this file is that of this package. */
function findPackage(): URL {
  for (let at = new URL(".", import.meta.url); ; at = new URL("..", at)) {
    const file = new URL("package.json", at);
    try {
      readFileSync(file);
      return file;
    } catch (err) {
      if (at.pathname === "/") throw err;
    }
  }
}
