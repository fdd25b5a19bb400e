package io.ringfence.client;

import io.grpc.KnownLength;
import io.grpc.MethodDescriptor;
import io.ringfence.client.proto.AppServiceGrpc;
import io.ringfence.client.proto.WorkRequest;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;

/** How frames become bytes: the method of the protocol, with {@link ResultsFrame} and {@link Frame} for the frequent ones. */
final class Codec {
    /** AppService.Work. A request is a WorkRequest or a ResultsFrame. */
    static final MethodDescriptor<Object, Frame> WORK = AppServiceGrpc.getWorkMethod().toBuilder(new Requests(), new Responses()).build();

    private Codec() {}

    private static final class Requests implements MethodDescriptor.Marshaller<Object> {
        @Override
        public InputStream stream(Object value) {
            return new Bytes(value instanceof ResultsFrame results ? results.toBytes() : ((WorkRequest) value).toByteArray());
        }

        @Override
        public Object parse(InputStream stream) {
            throw new UnsupportedOperationException("a worker receives no requests");
        }
    }

    private static final class Responses implements MethodDescriptor.Marshaller<Frame> {
        @Override
        public InputStream stream(Frame value) {
            throw new UnsupportedOperationException("a worker sends no responses");
        }

        @Override
        public Frame parse(InputStream stream) {
            try {
                if (!(stream instanceof KnownLength)) {
                    return Frame.parse(stream.readAllBytes());
                }
                byte[] bytes = new byte[stream.available()]; // its size: no buffer has to grow
                stream.readNBytes(bytes, 0, bytes.length);
                return Frame.parse(bytes);
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
    }

    /** Bytes whose number gRPC need not find out. */
    private static final class Bytes extends ByteArrayInputStream implements KnownLength {
        Bytes(byte[] bytes) {
            super(bytes);
        }
    }
}
