import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;

/**
 * Publishes events with Pulsar's Java client, as producers.py does with Python's.
 *
 * <p>Usage: Producers.java URL TOPICS KIND=COUNT...
 */
public class Producers {
    public static class Order {
        public int number;
        public String text;
    }

    public static void main(String[] args) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            for (int i = 2; i < args.length; i++) {
                String[] wanted = args[i].split("=");
                publish(client, args[1], wanted[0], Integer.parseInt(wanted[1]));
            }
        }
        System.exit(0); // whatever threads the client has left
    }

    static void publish(PulsarClient client, String topics, String kind, int count) throws Exception {
        if (kind.equals("java_avro")) {
            Schema<Order> schema = Schema.AVRO(Order.class);
            send(client.newProducer(schema), schema, topics, kind, count);
            return;
        }
        ProducerBuilder<byte[]> builder = client.newProducer();
        switch (kind) {
            case "java_plain" -> builder.enableBatching(false);
            case "java_batched" -> builder.compressionType(CompressionType.LZ4);
            case "java_key_batched" -> builder.batcherBuilder(BatcherBuilder.KEY_BASED);
            case "java_chunked" -> builder.enableBatching(false).enableChunking(true);
            default -> throw new IllegalArgumentException(kind);
        }
        send(builder, null, topics, kind, count);
    }

    @SuppressWarnings("unchecked")
    static <T> void send(ProducerBuilder<T> builder, Schema<T> schema, String topics, String kind, int count) throws Exception {
        MessageDigest sha = MessageDigest.getInstance("SHA-256");
        try (Producer<T> producer = builder.topic(topics + "-" + kind).blockIfQueueFull(true)
                .batchingMaxPublishDelay(10, TimeUnit.MILLISECONDS).create()) {
            List<CompletableFuture<?>> sent = new ArrayList<>();
            for (int number = 0; number < count; number++) {
                T value;
                byte[] data;
                if (schema != null) {
                    Order order = new Order();
                    order.number = number;
                    order.text = "größer ".repeat(number % 7);
                    value = (T) order;
                    data = schema.encode(value);
                } else {
                    data = (kind + " " + number + " ").repeat(1 + number % 30).getBytes(StandardCharsets.UTF_8);
                    if (kind.equals("java_chunked")) {
                        data = new byte[(6 << 20) + number];
                        new Random(number).nextBytes(data);
                    }
                    value = (T) data;
                }
                String key = "user-" + number % 211 + "-ü";
                sent.add(producer.newMessage().key(key).value(value)
                        .property("kind", kind).property("number", "" + number).property("key", key).property("empty", "")
                        .property("sha256", HexFormat.of().formatHex(sha.digest(data)))
                        .eventTime(1_700_000_000_000L + number).sendAsync());
            }
            producer.flush();
            CompletableFuture.allOf(sent.toArray(new CompletableFuture<?>[0])).get();
        }
    }
}
