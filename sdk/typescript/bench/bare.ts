/**
 * What gRPC and protobuf alone do: for each Deliveries frame, at once one frame with its receipt and a DONE for all of it,
 * and a Ping every 200 ms. The measure of bench/empty.ts.
 */
import { create, fromBinary, toBinary, type MessageInitShape } from "@bufbuild/protobuf";
import { Client, credentials } from "@grpc/grpc-js";
import { ResultKind, WorkRequestSchema, WorkResponseSchema, type WorkResponse } from "../src/gen/ringfence/app/v1/app_pb.js";

type Request = MessageInitShape<typeof WorkRequestSchema>;

const client = new Client(process.env.RINGFENCE_APP_ENDPOINT ?? "127.0.0.1:16650", credentials.createInsecure(), {
  "grpc.max_receive_message_length": 72 << 20,
  "grpc-node.flow_control_window": 4 << 20,
});
const call = client.makeBidiStreamRequest<Request, WorkResponse>(
  "/ringfence.app.v1.AppService/Work",
  (request) => Buffer.from(toBinary(WorkRequestSchema, create(WorkRequestSchema, request))),
  (bytes) => fromBinary(WorkResponseSchema, bytes),
);

call.write({ frame: { case: "hello", value: { maxInFlight: 1000, sdk: "bare-typescript/1", versionMin: 1, versionMax: 1 } } });
let k = 0n;
const ping = (): void => void call.write({ frame: { case: "ping", value: { k: ++k } } });
ping();
const pings = setInterval(ping, 200);
let number = 0n;
call.on("data", ({ frame }: WorkResponse) => {
  if (frame.case !== "deliveries") return;
  const results = frame.value.deliveries.map(({ deliveryId }) => ({ deliveryId, kind: ResultKind.DONE }));
  call.write({ receipt: frame.value.number, frame: { case: "results", value: { number: ++number, results } } });
});
call.on("error", (err) => {
  console.error(err.message);
  process.exitCode = 1;
});
call.on("status", () => {
  clearInterval(pings);
  client.close();
});
process.once("SIGTERM", () => process.exit(0));
