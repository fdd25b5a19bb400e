package io.ringfence.client;

import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.Channel;
import io.grpc.netty.shaded.io.netty.channel.ChannelOption;
import io.grpc.netty.shaded.io.netty.channel.EventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.epoll.Epoll;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollDomainSocketChannel;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollSocketChannel;
import io.grpc.netty.shaded.io.netty.channel.nio.NioEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.socket.nio.NioSocketChannel;
import io.grpc.netty.shaded.io.netty.channel.unix.DomainSocketAddress;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/** Dials the router. One thread serves the connections of a worker, one after the other. */
final class Channels implements Supplier<ManagedChannel>, AutoCloseable {
    private static final int WINDOW_BYTES = 4 << 20;
    private static final int CONNECT_MILLIS_MAX = 10_000;

    private final Endpoint endpoint;
    private final ChannelCredentials credentials;
    private final EventLoopGroup loop;

    Channels(Endpoint endpoint, ChannelCredentials credentials) {
        this.endpoint = endpoint;
        this.credentials = credentials != null ? credentials : InsecureChannelCredentials.create();
        if (endpoint.unixPath() != null && !Epoll.isAvailable()) {
            throw new IllegalArgumentException("endpoint " + endpoint + ": Unix sockets need Linux on x86-64 or ARM64; use host:port", Epoll.unavailabilityCause());
        }
        loop = Epoll.isAvailable() ? new EpollEventLoopGroup(1, Threads.platform("ringfence-stream-"))
                : new NioEventLoopGroup(1, Threads.platform("ringfence-stream-"));
    }

    @Override
    public ManagedChannel get() {
        NettyChannelBuilder builder;
        Class<? extends Channel> type = Epoll.isAvailable() ? EpollSocketChannel.class : NioSocketChannel.class;
        if (endpoint.unixPath() != null) {
            builder = NettyChannelBuilder.forAddress(new DomainSocketAddress(endpoint.unixPath()), credentials).overrideAuthority("localhost")
                    .withOption(ChannelOption.SO_KEEPALIVE, null); // gRPC sets it, and Netty warns of it there: null removes it
            type = EpollDomainSocketChannel.class;
        } else {
            builder = NettyChannelBuilder.forAddress(endpoint.host(), endpoint.port(), credentials);
        }
        return builder.channelType(type).eventLoopGroup(loop)
                .withOption(ChannelOption.CONNECT_TIMEOUT_MILLIS, CONNECT_MILLIS_MAX)
                .directExecutor() // frames are handled in the thread that reads them
                .disableRetry() // the worker dials again by itself: a stream is not repeatable
                .proxyDetector(address -> null) // the router is beside the application
                .flowControlWindow(WINDOW_BYTES)
                .maxInboundMessageSize(Stream.FRAME_BYTES_MAX)
                .build();
    }

    @Override
    public void close() {
        loop.shutdownGracefully(0, 1, TimeUnit.SECONDS);
    }
}
