/** The name and version of this SDK, for the router's logs. scripts/package.mjs sets the version. */
export const sdk = "ringfence-typescript/0.0.0-dev";
