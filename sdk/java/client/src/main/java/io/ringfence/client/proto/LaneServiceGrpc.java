package io.ringfence.client.proto;

import static io.grpc.MethodDescriptor.generateFullMethodName;

/**
 * <pre>
 * LaneService calls the handlers of keys. A status other than OK says that the router refused the request before it did anything; but
 * one that comes from the connection, after the request was sent, says as little as OUTCOME_UNKNOWN.
 * </pre>
 */
@io.grpc.stub.annotations.GrpcGenerated
public final class LaneServiceGrpc {

  private LaneServiceGrpc() {}

  public static final java.lang.String SERVICE_NAME = "ringfence.lane.v1.LaneService";

  // Static method descriptors that strictly reflect the proto.
  private static volatile io.grpc.MethodDescriptor<io.ringfence.client.proto.InvokeRequest,
      io.ringfence.client.proto.InvokeResponse> getInvokeMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Invoke",
      requestType = io.ringfence.client.proto.InvokeRequest.class,
      responseType = io.ringfence.client.proto.InvokeResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<io.ringfence.client.proto.InvokeRequest,
      io.ringfence.client.proto.InvokeResponse> getInvokeMethod() {
    io.grpc.MethodDescriptor<io.ringfence.client.proto.InvokeRequest, io.ringfence.client.proto.InvokeResponse> getInvokeMethod;
    if ((getInvokeMethod = LaneServiceGrpc.getInvokeMethod) == null) {
      synchronized (LaneServiceGrpc.class) {
        if ((getInvokeMethod = LaneServiceGrpc.getInvokeMethod) == null) {
          LaneServiceGrpc.getInvokeMethod = getInvokeMethod =
              io.grpc.MethodDescriptor.<io.ringfence.client.proto.InvokeRequest, io.ringfence.client.proto.InvokeResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Invoke"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  io.ringfence.client.proto.InvokeRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  io.ringfence.client.proto.InvokeResponse.getDefaultInstance()))
              .setSchemaDescriptor(new LaneServiceMethodDescriptorSupplier("Invoke"))
              .build();
        }
      }
    }
    return getInvokeMethod;
  }

  private static volatile io.grpc.MethodDescriptor<io.ringfence.client.proto.ReserveRequest,
      io.ringfence.client.proto.ReserveResponse> getReserveMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Reserve",
      requestType = io.ringfence.client.proto.ReserveRequest.class,
      responseType = io.ringfence.client.proto.ReserveResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.BIDI_STREAMING)
  public static io.grpc.MethodDescriptor<io.ringfence.client.proto.ReserveRequest,
      io.ringfence.client.proto.ReserveResponse> getReserveMethod() {
    io.grpc.MethodDescriptor<io.ringfence.client.proto.ReserveRequest, io.ringfence.client.proto.ReserveResponse> getReserveMethod;
    if ((getReserveMethod = LaneServiceGrpc.getReserveMethod) == null) {
      synchronized (LaneServiceGrpc.class) {
        if ((getReserveMethod = LaneServiceGrpc.getReserveMethod) == null) {
          LaneServiceGrpc.getReserveMethod = getReserveMethod =
              io.grpc.MethodDescriptor.<io.ringfence.client.proto.ReserveRequest, io.ringfence.client.proto.ReserveResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.BIDI_STREAMING)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Reserve"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  io.ringfence.client.proto.ReserveRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  io.ringfence.client.proto.ReserveResponse.getDefaultInstance()))
              .setSchemaDescriptor(new LaneServiceMethodDescriptorSupplier("Reserve"))
              .build();
        }
      }
    }
    return getReserveMethod;
  }

  private static volatile io.grpc.MethodDescriptor<io.ringfence.client.proto.SendRequest,
      io.ringfence.client.proto.SendResponse> getSendMethod;

  @io.grpc.stub.annotations.RpcMethod(
      fullMethodName = SERVICE_NAME + '/' + "Send",
      requestType = io.ringfence.client.proto.SendRequest.class,
      responseType = io.ringfence.client.proto.SendResponse.class,
      methodType = io.grpc.MethodDescriptor.MethodType.UNARY)
  public static io.grpc.MethodDescriptor<io.ringfence.client.proto.SendRequest,
      io.ringfence.client.proto.SendResponse> getSendMethod() {
    io.grpc.MethodDescriptor<io.ringfence.client.proto.SendRequest, io.ringfence.client.proto.SendResponse> getSendMethod;
    if ((getSendMethod = LaneServiceGrpc.getSendMethod) == null) {
      synchronized (LaneServiceGrpc.class) {
        if ((getSendMethod = LaneServiceGrpc.getSendMethod) == null) {
          LaneServiceGrpc.getSendMethod = getSendMethod =
              io.grpc.MethodDescriptor.<io.ringfence.client.proto.SendRequest, io.ringfence.client.proto.SendResponse>newBuilder()
              .setType(io.grpc.MethodDescriptor.MethodType.UNARY)
              .setFullMethodName(generateFullMethodName(SERVICE_NAME, "Send"))
              .setSampledToLocalTracing(true)
              .setRequestMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  io.ringfence.client.proto.SendRequest.getDefaultInstance()))
              .setResponseMarshaller(io.grpc.protobuf.ProtoUtils.marshaller(
                  io.ringfence.client.proto.SendResponse.getDefaultInstance()))
              .setSchemaDescriptor(new LaneServiceMethodDescriptorSupplier("Send"))
              .build();
        }
      }
    }
    return getSendMethod;
  }

  /**
   * Creates a new async stub that supports all call types for the service
   */
  public static LaneServiceStub newStub(io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<LaneServiceStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<LaneServiceStub>() {
        @java.lang.Override
        public LaneServiceStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new LaneServiceStub(channel, callOptions);
        }
      };
    return LaneServiceStub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports all types of calls on the service
   */
  public static LaneServiceBlockingV2Stub newBlockingV2Stub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<LaneServiceBlockingV2Stub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<LaneServiceBlockingV2Stub>() {
        @java.lang.Override
        public LaneServiceBlockingV2Stub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new LaneServiceBlockingV2Stub(channel, callOptions);
        }
      };
    return LaneServiceBlockingV2Stub.newStub(factory, channel);
  }

  /**
   * Creates a new blocking-style stub that supports unary and streaming output calls on the service
   */
  public static LaneServiceBlockingStub newBlockingStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<LaneServiceBlockingStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<LaneServiceBlockingStub>() {
        @java.lang.Override
        public LaneServiceBlockingStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new LaneServiceBlockingStub(channel, callOptions);
        }
      };
    return LaneServiceBlockingStub.newStub(factory, channel);
  }

  /**
   * Creates a new ListenableFuture-style stub that supports unary calls on the service
   */
  public static LaneServiceFutureStub newFutureStub(
      io.grpc.Channel channel) {
    io.grpc.stub.AbstractStub.StubFactory<LaneServiceFutureStub> factory =
      new io.grpc.stub.AbstractStub.StubFactory<LaneServiceFutureStub>() {
        @java.lang.Override
        public LaneServiceFutureStub newStub(io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
          return new LaneServiceFutureStub(channel, callOptions);
        }
      };
    return LaneServiceFutureStub.newStub(factory, channel);
  }

  /**
   * <pre>
   * LaneService calls the handlers of keys. A status other than OK says that the router refused the request before it did anything; but
   * one that comes from the connection, after the request was sent, says as little as OUTCOME_UNKNOWN.
   * </pre>
   */
  public interface AsyncService {

    /**
     * <pre>
     * Invoke calls a handler of a key, serially with the key's events and its other calls, and returns what became of the call.
     * </pre>
     */
    default void invoke(io.ringfence.client.proto.InvokeRequest request,
        io.grpc.stub.StreamObserver<io.ringfence.client.proto.InvokeResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getInvokeMethod(), responseObserver);
    }

    /**
     * <pre>
     * Reserve holds a key: no handler of it runs, and nobody else holds it. One stream is one reservation; it says Ask, and is answered Granted
     * or Over; then it renews, until Release or the end of its permission. The end of the stream is no release: the reservation ends when its
     * last permission has passed, unless another stream comes back for it before.
     * </pre>
     */
    default io.grpc.stub.StreamObserver<io.ringfence.client.proto.ReserveRequest> reserve(
        io.grpc.stub.StreamObserver<io.ringfence.client.proto.ReserveResponse> responseObserver) {
      return io.grpc.stub.ServerCalls.asyncUnimplementedStreamingCall(getReserveMethod(), responseObserver);
    }

    /**
     * <pre>
     * Send publishes an event of a key, at once or later: the handler of the key's events gets it when it is due, once it has run it is gone. OK says
     * that the broker has it. INVALID_ARGUMENT, UNIMPLEMENTED, FAILED_PRECONDITION and RESOURCE_EXHAUSTED say that it was not published; after any other
     * status that is not known, and the same id makes a repeat harmless.
     * </pre>
     */
    default void send(io.ringfence.client.proto.SendRequest request,
        io.grpc.stub.StreamObserver<io.ringfence.client.proto.SendResponse> responseObserver) {
      io.grpc.stub.ServerCalls.asyncUnimplementedUnaryCall(getSendMethod(), responseObserver);
    }
  }

  /**
   * Base class for the server implementation of the service LaneService.
   * <pre>
   * LaneService calls the handlers of keys. A status other than OK says that the router refused the request before it did anything; but
   * one that comes from the connection, after the request was sent, says as little as OUTCOME_UNKNOWN.
   * </pre>
   */
  public static abstract class LaneServiceImplBase
      implements io.grpc.BindableService, AsyncService {

    @java.lang.Override public final io.grpc.ServerServiceDefinition bindService() {
      return LaneServiceGrpc.bindService(this);
    }
  }

  /**
   * A stub to allow clients to do asynchronous rpc calls to service LaneService.
   * <pre>
   * LaneService calls the handlers of keys. A status other than OK says that the router refused the request before it did anything; but
   * one that comes from the connection, after the request was sent, says as little as OUTCOME_UNKNOWN.
   * </pre>
   */
  public static final class LaneServiceStub
      extends io.grpc.stub.AbstractAsyncStub<LaneServiceStub> {
    private LaneServiceStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected LaneServiceStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new LaneServiceStub(channel, callOptions);
    }

    /**
     * <pre>
     * Invoke calls a handler of a key, serially with the key's events and its other calls, and returns what became of the call.
     * </pre>
     */
    public void invoke(io.ringfence.client.proto.InvokeRequest request,
        io.grpc.stub.StreamObserver<io.ringfence.client.proto.InvokeResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getInvokeMethod(), getCallOptions()), request, responseObserver);
    }

    /**
     * <pre>
     * Reserve holds a key: no handler of it runs, and nobody else holds it. One stream is one reservation; it says Ask, and is answered Granted
     * or Over; then it renews, until Release or the end of its permission. The end of the stream is no release: the reservation ends when its
     * last permission has passed, unless another stream comes back for it before.
     * </pre>
     */
    public io.grpc.stub.StreamObserver<io.ringfence.client.proto.ReserveRequest> reserve(
        io.grpc.stub.StreamObserver<io.ringfence.client.proto.ReserveResponse> responseObserver) {
      return io.grpc.stub.ClientCalls.asyncBidiStreamingCall(
          getChannel().newCall(getReserveMethod(), getCallOptions()), responseObserver);
    }

    /**
     * <pre>
     * Send publishes an event of a key, at once or later: the handler of the key's events gets it when it is due, once it has run it is gone. OK says
     * that the broker has it. INVALID_ARGUMENT, UNIMPLEMENTED, FAILED_PRECONDITION and RESOURCE_EXHAUSTED say that it was not published; after any other
     * status that is not known, and the same id makes a repeat harmless.
     * </pre>
     */
    public void send(io.ringfence.client.proto.SendRequest request,
        io.grpc.stub.StreamObserver<io.ringfence.client.proto.SendResponse> responseObserver) {
      io.grpc.stub.ClientCalls.asyncUnaryCall(
          getChannel().newCall(getSendMethod(), getCallOptions()), request, responseObserver);
    }
  }

  /**
   * A stub to allow clients to do synchronous rpc calls to service LaneService.
   * <pre>
   * LaneService calls the handlers of keys. A status other than OK says that the router refused the request before it did anything; but
   * one that comes from the connection, after the request was sent, says as little as OUTCOME_UNKNOWN.
   * </pre>
   */
  public static final class LaneServiceBlockingV2Stub
      extends io.grpc.stub.AbstractBlockingStub<LaneServiceBlockingV2Stub> {
    private LaneServiceBlockingV2Stub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected LaneServiceBlockingV2Stub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new LaneServiceBlockingV2Stub(channel, callOptions);
    }

    /**
     * <pre>
     * Invoke calls a handler of a key, serially with the key's events and its other calls, and returns what became of the call.
     * </pre>
     */
    public io.ringfence.client.proto.InvokeResponse invoke(io.ringfence.client.proto.InvokeRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getInvokeMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Reserve holds a key: no handler of it runs, and nobody else holds it. One stream is one reservation; it says Ask, and is answered Granted
     * or Over; then it renews, until Release or the end of its permission. The end of the stream is no release: the reservation ends when its
     * last permission has passed, unless another stream comes back for it before.
     * </pre>
     */
    @io.grpc.ExperimentalApi("https://github.com/grpc/grpc-java/issues/10918")
    public io.grpc.stub.BlockingClientCall<io.ringfence.client.proto.ReserveRequest, io.ringfence.client.proto.ReserveResponse>
        reserve() {
      return io.grpc.stub.ClientCalls.blockingBidiStreamingCall(
          getChannel(), getReserveMethod(), getCallOptions());
    }

    /**
     * <pre>
     * Send publishes an event of a key, at once or later: the handler of the key's events gets it when it is due, once it has run it is gone. OK says
     * that the broker has it. INVALID_ARGUMENT, UNIMPLEMENTED, FAILED_PRECONDITION and RESOURCE_EXHAUSTED say that it was not published; after any other
     * status that is not known, and the same id makes a repeat harmless.
     * </pre>
     */
    public io.ringfence.client.proto.SendResponse send(io.ringfence.client.proto.SendRequest request) throws io.grpc.StatusException {
      return io.grpc.stub.ClientCalls.blockingV2UnaryCall(
          getChannel(), getSendMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do limited synchronous rpc calls to service LaneService.
   * <pre>
   * LaneService calls the handlers of keys. A status other than OK says that the router refused the request before it did anything; but
   * one that comes from the connection, after the request was sent, says as little as OUTCOME_UNKNOWN.
   * </pre>
   */
  public static final class LaneServiceBlockingStub
      extends io.grpc.stub.AbstractBlockingStub<LaneServiceBlockingStub> {
    private LaneServiceBlockingStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected LaneServiceBlockingStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new LaneServiceBlockingStub(channel, callOptions);
    }

    /**
     * <pre>
     * Invoke calls a handler of a key, serially with the key's events and its other calls, and returns what became of the call.
     * </pre>
     */
    public io.ringfence.client.proto.InvokeResponse invoke(io.ringfence.client.proto.InvokeRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getInvokeMethod(), getCallOptions(), request);
    }

    /**
     * <pre>
     * Send publishes an event of a key, at once or later: the handler of the key's events gets it when it is due, once it has run it is gone. OK says
     * that the broker has it. INVALID_ARGUMENT, UNIMPLEMENTED, FAILED_PRECONDITION and RESOURCE_EXHAUSTED say that it was not published; after any other
     * status that is not known, and the same id makes a repeat harmless.
     * </pre>
     */
    public io.ringfence.client.proto.SendResponse send(io.ringfence.client.proto.SendRequest request) {
      return io.grpc.stub.ClientCalls.blockingUnaryCall(
          getChannel(), getSendMethod(), getCallOptions(), request);
    }
  }

  /**
   * A stub to allow clients to do ListenableFuture-style rpc calls to service LaneService.
   * <pre>
   * LaneService calls the handlers of keys. A status other than OK says that the router refused the request before it did anything; but
   * one that comes from the connection, after the request was sent, says as little as OUTCOME_UNKNOWN.
   * </pre>
   */
  public static final class LaneServiceFutureStub
      extends io.grpc.stub.AbstractFutureStub<LaneServiceFutureStub> {
    private LaneServiceFutureStub(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      super(channel, callOptions);
    }

    @java.lang.Override
    protected LaneServiceFutureStub build(
        io.grpc.Channel channel, io.grpc.CallOptions callOptions) {
      return new LaneServiceFutureStub(channel, callOptions);
    }

    /**
     * <pre>
     * Invoke calls a handler of a key, serially with the key's events and its other calls, and returns what became of the call.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<io.ringfence.client.proto.InvokeResponse> invoke(
        io.ringfence.client.proto.InvokeRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getInvokeMethod(), getCallOptions()), request);
    }

    /**
     * <pre>
     * Send publishes an event of a key, at once or later: the handler of the key's events gets it when it is due, once it has run it is gone. OK says
     * that the broker has it. INVALID_ARGUMENT, UNIMPLEMENTED, FAILED_PRECONDITION and RESOURCE_EXHAUSTED say that it was not published; after any other
     * status that is not known, and the same id makes a repeat harmless.
     * </pre>
     */
    public com.google.common.util.concurrent.ListenableFuture<io.ringfence.client.proto.SendResponse> send(
        io.ringfence.client.proto.SendRequest request) {
      return io.grpc.stub.ClientCalls.futureUnaryCall(
          getChannel().newCall(getSendMethod(), getCallOptions()), request);
    }
  }

  private static final int METHODID_INVOKE = 0;
  private static final int METHODID_SEND = 1;
  private static final int METHODID_RESERVE = 2;

  private static final class MethodHandlers<Req, Resp> implements
      io.grpc.stub.ServerCalls.UnaryMethod<Req, Resp>,
      io.grpc.stub.ServerCalls.ServerStreamingMethod<Req, Resp>,
      io.grpc.stub.ServerCalls.ClientStreamingMethod<Req, Resp>,
      io.grpc.stub.ServerCalls.BidiStreamingMethod<Req, Resp> {
    private final AsyncService serviceImpl;
    private final int methodId;

    MethodHandlers(AsyncService serviceImpl, int methodId) {
      this.serviceImpl = serviceImpl;
      this.methodId = methodId;
    }

    @java.lang.Override
    @java.lang.SuppressWarnings("unchecked")
    public void invoke(Req request, io.grpc.stub.StreamObserver<Resp> responseObserver) {
      switch (methodId) {
        case METHODID_INVOKE:
          serviceImpl.invoke((io.ringfence.client.proto.InvokeRequest) request,
              (io.grpc.stub.StreamObserver<io.ringfence.client.proto.InvokeResponse>) responseObserver);
          break;
        case METHODID_SEND:
          serviceImpl.send((io.ringfence.client.proto.SendRequest) request,
              (io.grpc.stub.StreamObserver<io.ringfence.client.proto.SendResponse>) responseObserver);
          break;
        default:
          throw new AssertionError();
      }
    }

    @java.lang.Override
    @java.lang.SuppressWarnings("unchecked")
    public io.grpc.stub.StreamObserver<Req> invoke(
        io.grpc.stub.StreamObserver<Resp> responseObserver) {
      switch (methodId) {
        case METHODID_RESERVE:
          return (io.grpc.stub.StreamObserver<Req>) serviceImpl.reserve(
              (io.grpc.stub.StreamObserver<io.ringfence.client.proto.ReserveResponse>) responseObserver);
        default:
          throw new AssertionError();
      }
    }
  }

  public static final io.grpc.ServerServiceDefinition bindService(AsyncService service) {
    return io.grpc.ServerServiceDefinition.builder(getServiceDescriptor())
        .addMethod(
          getInvokeMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              io.ringfence.client.proto.InvokeRequest,
              io.ringfence.client.proto.InvokeResponse>(
                service, METHODID_INVOKE)))
        .addMethod(
          getReserveMethod(),
          io.grpc.stub.ServerCalls.asyncBidiStreamingCall(
            new MethodHandlers<
              io.ringfence.client.proto.ReserveRequest,
              io.ringfence.client.proto.ReserveResponse>(
                service, METHODID_RESERVE)))
        .addMethod(
          getSendMethod(),
          io.grpc.stub.ServerCalls.asyncUnaryCall(
            new MethodHandlers<
              io.ringfence.client.proto.SendRequest,
              io.ringfence.client.proto.SendResponse>(
                service, METHODID_SEND)))
        .build();
  }

  private static abstract class LaneServiceBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoFileDescriptorSupplier, io.grpc.protobuf.ProtoServiceDescriptorSupplier {
    LaneServiceBaseDescriptorSupplier() {}

    @java.lang.Override
    public com.google.protobuf.Descriptors.FileDescriptor getFileDescriptor() {
      return io.ringfence.client.proto.Lane.getDescriptor();
    }

    @java.lang.Override
    public com.google.protobuf.Descriptors.ServiceDescriptor getServiceDescriptor() {
      return getFileDescriptor().findServiceByName("LaneService");
    }
  }

  private static final class LaneServiceFileDescriptorSupplier
      extends LaneServiceBaseDescriptorSupplier {
    LaneServiceFileDescriptorSupplier() {}
  }

  private static final class LaneServiceMethodDescriptorSupplier
      extends LaneServiceBaseDescriptorSupplier
      implements io.grpc.protobuf.ProtoMethodDescriptorSupplier {
    private final java.lang.String methodName;

    LaneServiceMethodDescriptorSupplier(java.lang.String methodName) {
      this.methodName = methodName;
    }

    @java.lang.Override
    public com.google.protobuf.Descriptors.MethodDescriptor getMethodDescriptor() {
      return getServiceDescriptor().findMethodByName(methodName);
    }
  }

  private static volatile io.grpc.ServiceDescriptor serviceDescriptor;

  public static io.grpc.ServiceDescriptor getServiceDescriptor() {
    io.grpc.ServiceDescriptor result = serviceDescriptor;
    if (result == null) {
      synchronized (LaneServiceGrpc.class) {
        result = serviceDescriptor;
        if (result == null) {
          serviceDescriptor = result = io.grpc.ServiceDescriptor.newBuilder(SERVICE_NAME)
              .setSchemaDescriptor(new LaneServiceFileDescriptorSupplier())
              .addMethod(getInvokeMethod())
              .addMethod(getReserveMethod())
              .addMethod(getSendMethod())
              .build();
        }
      }
    }
    return result;
  }
}
