package io.ringfence.client;

import com.google.protobuf.MessageLite;
import com.google.protobuf.Parser;

/** Turns functions that take the decoded payload into handlers. Events whose payload does not decode are rejected. */
public final class Handlers {
    private Handlers() {}

    /**
     * Returns a handler for payloads in JSON. The library that decodes them is yours, for example Jackson's ObjectMapper:
     *
     * <pre>{@code Handlers.json(bytes -> mapper.readValue(bytes, Order.class), (event, order) -> store.add(order))}</pre>
     *
     * @param <T> the type of the payload
     * @param decoder decodes a payload
     * @param handler gets the decoded payload
     * @return the handler
     */
    public static <T> Handler json(Decoder<? extends T> decoder, TypedHandler<? super T> handler) {
        return decoding("JSON", decoder, handler);
    }

    /**
     * Returns a handler for payloads in protobuf's binary form.
     *
     * <pre>{@code Handlers.proto(Order.parser(), (event, order) -> store.add(order))}</pre>
     *
     * @param <T> the message
     * @param parser the message's parser
     * @param handler gets the message
     * @return the handler
     */
    public static <T extends MessageLite> Handler proto(Parser<T> parser, TypedHandler<? super T> handler) {
        return decoding("protobuf", parser::parseFrom, handler);
    }

    private static <T> Handler decoding(String format, Decoder<? extends T> decoder, TypedHandler<? super T> handler) {
        if (decoder == null || handler == null) {
            throw new IllegalArgumentException("the decoder or the handler is null");
        }
        return event -> {
            T payload;
            try {
                payload = decoder.decode(event.payload());
            } catch (Exception e) {
                throw new RejectException("decode " + format + ": " + e.getMessage(), e);
            }
            if (payload == null) {
                throw new RejectException("decode " + format + ": the payload holds no value");
            }
            handler.handle(event, payload);
        };
    }
}
