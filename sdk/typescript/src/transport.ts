import type { Socket } from "node:net";
import { Client, credentials, Metadata, type CallCredentials, type ChannelCredentials, type ChannelOptions, type StatusObject } from "@grpc/grpc-js";
import type { TlsOptions } from "./options.js";
import { sendPath } from "./sending.js";

/** The worker's side of one stream. Frames are encoded WorkRequests. */
export interface Wire {
  /** Queues a frame; frames are sent in order. After the end of the stream it does nothing. */
  send(frame: Buffer): void;
  /** Says that no further frame follows. */
  halfClose(): void;
  /** Ends the stream at once. */
  cancel(): void;
  /**
   * Makes a Send over the same connection. `answered` is called once, with the status unless it is OK. Returns what gives the Send up.
   * @param request an encoded SendRequest, and what is answered an encoded SendResponse.
   */
  publish(token: string, request: Uint8Array, withinMs: number, answered: (failure: Status | undefined, response: Uint8Array) => void): () => void;
}

/** How a stream ended: a status of gRPC. */
export interface Status {
  readonly code: number;
  readonly details: string;
}

/** What a stream tells the session. Calls come in order and one at a time. */
export interface WireEvents {
  /** A frame has arrived: an encoded WorkResponse. */
  frame(bytes: Buffer): void;
  /** The stream has ended. It is called once, and nothing after it. */
  end(status: Status): void;
}

/** Opens a stream. `token` is "" if there is none. */
export type Connect = (token: string, events: WireEvents) => Wire;

/** More than the largest frame of any router. */
const frameMax = 72 << 20;

/** Lets the router send ahead this many bytes; Node's default of 64 KiB would take a round trip for each. */
const windowBytes = 4 << 20;

/** How long the socket of a stream on which the router has said nothing stays open after its end, in milliseconds. */
const lingerMax = 1000;

const path = "/ringfence.app.v1.AppService/Work";
const none = new Uint8Array(0);

/** What gRPC calls for messages that are bytes. */
export const unchanged = (frame: Buffer): Buffer => frame;

/** Returns the metadata of a request. `token` is "" if there is none. */
export function metadataOf(token: string): Metadata {
  const metadata = new Metadata();
  if (token !== "") metadata.set("authorization", `Bearer ${token}`);
  return metadata;
}

/** Returns a function that opens streams by gRPC, each over a connection of its own. */
export function grpcConnect(endpoint: string, tls: TlsOptions | undefined): Connect {
  const options: ChannelOptions = {
    ...channelOptions(tls),
    "grpc.use_local_subchannel_pool": 1,
    "grpc.max_receive_message_length": frameMax,
    "grpc-node.flow_control_window": windowBytes,
  };
  return (token, events) => {
    const sockets = new Set<Socket>();
    const client = new Client(endpoint, noting(channelCredentials(tls), sockets), options);
    const call = client.makeBidiStreamRequest<Buffer, Buffer>(path, unchanged, unchanged, metadataOf(token));
    let over = false;
    call.on("data", (frame: Buffer) => {
      sockets.clear();
      if (!over) events.frame(frame);
    });
    call.on("error", () => {}); // the status says the same, and comes also without an error
    call.on("status", (status: StatusObject) => {
      if (over) return;
      over = true;
      client.close();
      destroyLater(sockets);
      events.end(status);
    });
    return {
      send: (frame) => void (over || call.write(frame)),
      halfClose: () => void call.end(),
      cancel: () => call.cancel(),
      publish: (tokenNow, request, withinMs, answered) => publishBy(client, tokenNow, request, withinMs, answered),
    };
  };
}

/**
 * Notes the sockets of connections that are made with these credentials. gRPC closes none on which the router has said nothing yet: a router that is
 * frozen would cost the application a file with each attempt.
 */
export function noting(of: ChannelCredentials, sockets: Set<Socket>): ChannelCredentials {
  if (typeof of._createSecureConnector !== "function") return of; // it is not for applications: another version may lack it
  const create = of._createSecureConnector.bind(of);
  of._createSecureConnector = (...all) => {
    const connector = create(...all);
    if (typeof connector?.connect !== "function") return connector;
    const connect = connector.connect.bind(connector);
    connector.connect = (socket) => {
      sockets.add(socket);
      socket.once("close", () => sockets.delete(socket));
      return connect(socket);
    };
    return connector;
  };
  return of;
}

/**
 * Calls a function when there is a connection for a call with these credentials, before anything is sent: gRPC asks for them then. The token is sent in
 * another way.
 */
export function whenConnected(connected: () => void): CallCredentials {
  return credentials.createFromMetadataGenerator((_, answer) => {
    connected();
    answer(null, new Metadata());
  });
}

/** Closes sockets that are still open in a moment: what was written before goes out first. */
export function destroyLater(sockets: ReadonlySet<Socket>): void {
  if (sockets.size > 0) setTimeout(() => sockets.forEach((socket) => socket.destroy()), lingerMax).unref();
}

/** Makes a Send: see Wire.publish. The client must not be closed. */
export function publishBy(client: Client, token: string, request: Uint8Array, withinMs: number, answered: Parameters<Wire["publish"]>[3]): () => void {
  const call = client.makeUnaryRequest(sendPath, unchanged, unchanged, Buffer.from(request), metadataOf(token), { deadline: Date.now() + withinMs }, (failure, response) => {
    if (failure !== null) answered({ code: failure.code, details: failure.details }, none);
    else answered(undefined, response!);
  });
  return () => call.cancel();
}

/** Options of all connections to a router. */
export function channelOptions(tls: TlsOptions | undefined): ChannelOptions {
  const options: ChannelOptions = {
    "grpc.enable_retries": 0, // a stream is not repeatable, and of a call only its caller knows
    "grpc.enable_http_proxy": 0, // the router is beside the application
    "grpc.service_config_disable_resolution": 1,
    "grpc.max_send_message_length": -1,
  };
  if (tls?.serverName !== undefined) options["grpc.ssl_target_name_override"] = tls.serverName;
  return options;
}

export function channelCredentials(tls: TlsOptions | undefined): ChannelCredentials {
  if (tls === undefined) return credentials.createInsecure();
  return credentials.createSsl(bufferOf(tls.ca), bufferOf(tls.key), bufferOf(tls.cert));
}

function bufferOf(pem: string | Buffer): Buffer {
  return typeof pem === "string" ? Buffer.from(pem) : pem;
}
