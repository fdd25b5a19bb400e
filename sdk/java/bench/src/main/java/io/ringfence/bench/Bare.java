package io.ringfence.bench;

import io.grpc.ManagedChannel;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.StreamObserver;
import io.ringfence.client.Worker;
import io.ringfence.client.proto.AppServiceGrpc;
import io.ringfence.client.proto.Deliveries;
import io.ringfence.client.proto.Delivery;
import io.ringfence.client.proto.Hello;
import io.ringfence.client.proto.Ping;
import io.ringfence.client.proto.Result;
import io.ringfence.client.proto.ResultKind;
import io.ringfence.client.proto.Results;
import io.ringfence.client.proto.WorkRequest;
import io.ringfence.client.proto.WorkResponse;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * The plain stream of the same frames, by the code that gRPC and protobuf generate: each Deliveries frame is answered at
 * once, by one frame. It keeps no rule of the protocol: it is the measure for {@link Empty}.
 */
public final class Bare {
    private static final int PING_EVERY_MS = 200;

    private final CountDownLatch over = new CountDownLatch(1);
    private final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
    private StreamObserver<WorkRequest> out;
    private long pings;
    private long results;

    private Bare() {}

    /**
     * Runs until the router ends the stream.
     *
     * @param arguments none
     * @throws InterruptedException never
     */
    public static void main(String[] arguments) throws InterruptedException {
        new Bare().run();
    }

    private void run() throws InterruptedException {
        String endpoint = System.getenv().getOrDefault(Worker.ENDPOINT_ENV, Worker.DEFAULT_ENDPOINT);
        int colon = endpoint.lastIndexOf(':');
        ManagedChannel channel = NettyChannelBuilder.forAddress(endpoint.substring(0, colon), Integer.parseInt(endpoint.substring(colon + 1)))
                .usePlaintext().directExecutor().maxInboundMessageSize(66 << 20).flowControlWindow(4 << 20).build();
        synchronized (this) {
            out = AppServiceGrpc.newStub(channel).work(new Receiver());
            out.onNext(WorkRequest.newBuilder().setHello(Hello.newBuilder().setMaxInFlight(1_000).setSdk("bare-java/1")).build());
        }
        timer.scheduleAtFixedRate(this::ping, 0, PING_EVERY_MS, TimeUnit.MILLISECONDS);
        over.await();
        timer.shutdownNow();
        channel.shutdownNow();
    }

    private synchronized void ping() {
        out.onNext(WorkRequest.newBuilder().setPing(Ping.newBuilder().setK(++pings)).build());
    }

    private synchronized void answer(Deliveries frame) {
        Results.Builder answers = Results.newBuilder().setNumber(++results);
        for (Delivery delivery : frame.getDeliveriesList()) {
            answers.addResults(Result.newBuilder().setDeliveryId(delivery.getDeliveryId()).setKind(ResultKind.RESULT_KIND_DONE));
        }
        out.onNext(WorkRequest.newBuilder().setReceipt(frame.getNumber()).setResults(answers).build());
    }

    private final class Receiver implements StreamObserver<WorkResponse> {
        @Override
        public void onNext(WorkResponse frame) {
            if (frame.hasDeliveries()) {
                answer(frame.getDeliveries());
            }
        }

        @Override
        public void onError(Throwable failure) {
            System.err.println("the stream ended: " + failure);
            over.countDown();
        }

        @Override
        public void onCompleted() {
            over.countDown();
        }
    }
}
