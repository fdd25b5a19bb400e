import { readFileSync } from "node:fs";
import { wrongCalls, type CallHandler } from "./call.js";
import type { Clock } from "./clock.js";
import { RingfenceError, textOf } from "./errors.js";
import type { Event } from "./event.js";
import type { Interceptor } from "./handler.js";
import { declaredOf, wrongSchedules, type Declared, type Schedule } from "./schedules.js";
import type { Traces } from "./traces.js";
import type { Connect } from "./transport.js";

/** The environment variable with the router's endpoint, used without Options.endpoint. */
export const endpointEnv = "RINGFENCE_APP_ENDPOINT";

/** The environment variable that names the token file, used without Options.tokenFile. */
export const tokenFileEnv = "RINGFENCE_APP_TOKEN_FILE";

/** The default address of a router. */
export const defaultEndpoint = "127.0.0.1:16650";

/** The default of Options.maxInFlight. */
export const maxInFlightDefault = 1000;

/** The default of Options.drainGraceMs. */
export const drainGraceDefault = 30_000;

/** The default of Options.stateMax. */
export const stateMaxDefault = 100_000;

/**
 * What the SDK logs: connections, lost keys, failures of handlers. It never logs a key or a payload.
 * A console, pino or winston logger will do after a function of one line.
 */
export interface Logger {
  info(message: string, fields: Readonly<Record<string, unknown>>): void;
  warn(message: string, fields: Readonly<Record<string, unknown>>): void;
  error(message: string, fields: Readonly<Record<string, unknown>>): void;
}

/** Mutual TLS, for a router on another machine. All values are PEM. */
export interface TlsOptions {
  /** The certificates of the authorities that the router's certificate is checked against. */
  ca: string | Buffer;
  /** The certificate of this application, which the router requires. */
  cert: string | Buffer;
  /** The private key of cert. */
  key: string | Buffer;
  /** The name in the router's certificate; the host of the endpoint by default. */
  serverName?: string;
}

/** A session with the router. */
export interface Session {
  /** The router's member name. */
  readonly node: string;
  readonly group: string;
  /** The router's name for this worker, as in its logs. */
  readonly worker: string;
  /** The most unanswered events: Options.maxInFlight, or the router's lower bound. */
  readonly inFlightMax: number;
}

/** How the handler of an event ended. */
export interface Outcome {
  /** not_started: a call of a method without a handler. */
  readonly kind: "done" | "retry" | "reject" | "cancelled" | "not_started";
  /** What the handler threw; undefined for "done". */
  readonly error: unknown;
  /** How long the handler ran. */
  readonly durationMs: number;
}

/**
 * Functions that are called for metrics. They must not take long: events and Pings wait for them. What they throw is
 * logged and changes nothing.
 */
export interface Hooks {
  /** Before the handler of an event. */
  started?(event: Event): void;
  /** Once for each `started`. */
  finished?(event: Event, outcome: Outcome): void;
  /** A session with the router is established; before its first event. */
  connected?(session: Session): void;
  /** A session has ended, or an attempt to establish one has failed. undefined: the worker stops. */
  disconnected?(error: RingfenceError | undefined): void;
  /** The number of unanswered events has changed; about once for each frame. */
  window?(held: number, limit: number): void;
}

/** Options of run and deliveries. All are optional. */
export interface Options {
  /** host:port or unix:///path. Default: the value of RINGFENCE_APP_ENDPOINT, else 127.0.0.1:16650. */
  endpoint?: string;
  /**
   * Bounds the unanswered events of this worker, and so the handlers that run at once: 1 to 100000, 1000 by
   * default. The router may have a lower bound.
   */
  maxInFlight?: number;
  /** Names this worker in the router's logs. By default the router chooses a name. */
  name?: string;
  /** How long handlers may go on after the worker has begun to stop, in milliseconds: 30000 by default. Then their signals abort. */
  drainGraceMs?: number;
  /** At the end the router hands all its keys over and leaves its group. For an application that ends with its worker. */
  leaveGroup?: boolean;
  /** Stops the worker, in order, when it aborts. */
  signal?: AbortSignal;
  /** Stops the worker, in order, at SIGTERM and SIGINT; a second signal cancels the running handlers at once, and a third one ends the process. Default: true, unless `signal` is given. Node delivers no signals to worker threads. */
  handleSignals?: boolean;
  /** Where to log. By default lines on standard error. */
  logger?: Logger;
  /** Functions around the handler, for run; the first one is the outermost. */
  interceptors?: readonly Interceptor[];
  hooks?: Hooks;
  /**
   * The handlers of calls by their methods, for run. A method has 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'. All workers of a
   * group should have the same ones, since a call goes to the worker of its key, whatever methods that has.
   */
  calls?: Readonly<Record<string, CallHandler>>;
  /**
   * Schedules by their names, for run: at most 256, with names of 1 to 128 bytes. The handler of each runs at its times, once in the whole group, on the member
   * that owns the key schedule/NAME, and never beside itself. A schedule is stored nowhere: one that no application of the group still declares does
   * not run. All workers of a group should declare the same ones. The router checks them, and a wrong one ends run.
   *
   * A firing runs at least once. It runs twice if the owner dies between the end of the handler and the ack, so pass the fence, and compare the time, in
   * what you write.
   */
  schedules?: Readonly<Record<string, Schedule>>;
  /** Bounds the keys whose states are kept: 100000 by default. With 0 Event.state always loads. */
  stateMax?: number;
  /**
   * Called with true when a session is established, and with false when it is lost or an attempt fails. For a readiness probe. What it throws is
   * logged and changes nothing.
   */
  ready?(is: boolean): void;
  /**
   * Spans of OpenTelemetry for handlers. Default: those of @opentelemetry/api, if it is installed and the application has
   * set a propagator. false: none.
   */
  traces?: Traces | false;
  /** Mutual TLS, for a router that is not on loopback. */
  tls?: TlsOptions;
  /** A file with the token that the router requires; read for each stream. Default: the value of RINGFENCE_APP_TOKEN_FILE. "": none. */
  tokenFile?: string;
  /** Opens streams in another way than by gRPC. For the test router. @internal */
  connect?: Connect;
  /** The clock that leases run on. For the test router. @internal */
  clock?: Clock;
}

const optionNames: ReadonlySet<string> = new Set<keyof Options>([
  "endpoint", "maxInFlight", "name", "drainGraceMs", "leaveGroup", "signal", "handleSignals", "logger", "interceptors", "hooks", "calls", "schedules", "stateMax", "ready", "traces",
  "tls", "tokenFile", "connect", "clock",
]);

/** Checked options with their defaults. */
export interface Settings {
  readonly endpoint: string;
  readonly maxInFlight: number;
  readonly name: string;
  readonly drainGraceMs: number;
  readonly leaveGroup: boolean;
  readonly handleSignals: boolean;
  readonly logger: Logger;
  readonly interceptors: readonly Interceptor[];
  readonly hooks: Hooks;
  readonly calls: ReadonlyMap<string, CallHandler>;
  readonly schedules: ReadonlyMap<string, Declared>;
  readonly stateMax: number;
  readonly tokenFile: string;
  readonly options: Options;
}

/**
 * Checks options and fills their defaults in.
 * @throws RingfenceError with the code "argument" that names all options that are wrong.
 */
export function settingsOf(options: Options): Settings {
  const wrong: [argument: string, text: string][] = [];
  const bad = (is: boolean, argument: string, text: string) => {
    if (is) wrong.push([argument, `${argument} ${text}`]);
  };
  for (const name of Object.keys(options)) bad(!optionNames.has(name), name, "is no option");
  const { maxInFlight = maxInFlightDefault, drainGraceMs = drainGraceDefault, name = "", interceptors = [], calls = {}, schedules = {}, stateMax = stateMaxDefault, tls, signal, logger = stderrLogger } = options;
  bad(!Number.isInteger(maxInFlight) || maxInFlight < 1 || maxInFlight > 100_000, "maxInFlight", `is ${maxInFlight}, want 1 to 100000`);
  bad(!(drainGraceMs >= 0 && drainGraceMs <= 2 ** 31 - 1), "drainGraceMs", `is ${drainGraceMs}, want 0 to ${2 ** 31 - 1}`);
  bad(typeof name !== "string", "name", "is no string");
  bad(!["info", "warn", "error"].every((level) => typeof logger?.[level as "info"] === "function"), "logger", "has no methods info, warn and error");
  bad(!interceptors.every((one: unknown) => typeof one === "function"), "interceptors", "contains a value that is not a function");
  bad(wrongCalls(calls) !== "", "calls", wrongCalls(calls));
  bad(wrongSchedules(schedules) !== "", "schedules", wrongSchedules(schedules));
  bad(!Number.isInteger(stateMax) || stateMax < 0, "stateMax", `is ${stateMax}, want 0 or more`);
  bad(signal !== undefined && typeof signal.addEventListener !== "function", "signal", "is no AbortSignal");
  bad(tls !== undefined && !(tls.ca && tls.cert && tls.key), "tls", "has no ca, cert and key: the router requires a certificate of the application");
  const endpoint = options.endpoint || process.env[endpointEnv] || defaultEndpoint;
  const target = targetOf(endpoint);
  bad(target === undefined, "endpoint", `is ${JSON.stringify(endpoint)}, want host:port or unix:///path`);
  if (wrong.length > 0) throw new RingfenceError("argument", wrong.map(([, text]) => text).join("; "), wrong[0]![0]);
  return {
    endpoint: target!, maxInFlight, name, drainGraceMs, stateMax, logger: guarded(logger), interceptors,
    leaveGroup: options.leaveGroup ?? false,
    handleSignals: options.handleSignals ?? signal === undefined,
    hooks: options.hooks ?? {},
    calls: new Map(Object.entries(calls)),
    schedules: declaredOf(schedules),
    tokenFile: options.tokenFile ?? process.env[tokenFileEnv] ?? "",
    options,
  };
}

/** Returns an endpoint as gRPC names it, undefined if it is none. */
export function targetOf(endpoint: string): string | undefined {
  const unix = /^unix:(?:\/\/)?(\/.+)$/.exec(endpoint);
  if (unix) return `unix:${unix[1]}`;
  const tcp = /^(\[[0-9a-fA-F:.]+\]|[^:/[\]\s]*):(\d+)$/.exec(endpoint);
  return tcp && Number(tcp[2]) >= 1 && Number(tcp[2]) <= 65_535 ? `${tcp[1] || "localhost"}:${tcp[2]}` : undefined;
}

/** Logs that what is sent and received leaves this machine without TLS, if it does. */
export function warnOfPlainText({ endpoint, logger, options }: Settings): void {
  if (options.connect !== undefined || options.tls !== undefined || isLocal(endpoint)) return;
  logger.warn("the connection leaves this machine without TLS: set the option tls", { endpoint });
}

/** Whether a connection to a target of targetOf does not leave this machine. */
export function isLocal(target: string): boolean {
  return /^(unix:|localhost:|127\.\d+\.\d+\.\d+:|\[::1\]:)/.test(target);
}

/**
 * Reads the token, "" if there is none.
 * @throws RingfenceError with the code "unauthenticated" if the file cannot be used.
 */
export function readToken(file: string): string {
  if (file === "") return "";
  let token: string;
  try {
    token = readFileSync(file, "utf8").trim();
  } catch (err) {
    throw new RingfenceError("unauthenticated", `token file: ${textOf(err)}`, "", { cause: err });
  }
  if (token === "") throw new RingfenceError("unauthenticated", `token file: ${file} is empty`);
  return token;
}

/** Returns a logger that does not throw: what another one fails to write, at once or by its promise, goes to stderr, with the reason. */
function guarded(logger: Logger): Logger {
  const level = (name: "info" | "warn" | "error"): Logger["info"] => (message, fields) => {
    const failed = (error: unknown) => {
      stderrLogger.error("the logger failed", { error });
      stderrLogger[name](message, fields);
    };
    try {
      const written: unknown = logger[name](message, fields);
      if (written instanceof Promise) written.catch(failed); // the rejection of an async function, which nothing else handles: Node would end the process
    } catch (error) {
      failed(error);
    }
  };
  return { info: level("info"), warn: level("warn"), error: level("error") };
}

/** Writes lines to standard error, such as: ringfence: warn: no stream to the router endpoint=… error=… */
const stderrLogger: Logger = {
  info: (message, fields) => write("info", message, fields),
  warn: (message, fields) => write("warn", message, fields),
  error: (message, fields) => write("error", message, fields),
};

function write(level: string, message: string, fields: Readonly<Record<string, unknown>>): void {
  let line = `ringfence: ${level}: ${message}`;
  for (const [name, value] of Object.entries(fields)) {
    const text = textOf(value); // also of what a logger has thrown
    line += ` ${name}=${/^[^\s"=]+$/.test(text) ? text : JSON.stringify(text)}`;
  }
  process.stderr.write(`${line}\n`);
}

