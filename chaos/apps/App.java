import io.ringfence.client.Event;
import io.ringfence.client.Worker;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * An application of the fault tests on the Java SDK. It asks the process that has started it for each step, as
 * chaos/foreign.go describes: one JSON object in a line, on standard output, and the answers on standard input.
 */
public final class App {
    /** A field of an answer: they are numbers and booleans alone. */
    private static final Pattern FIELD = Pattern.compile("\"(\\w+)\":([\\w.+-]+)");

    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final AtomicLong ASKED = new AtomicLong();
    private static final Map<Long, CompletableFuture<Map<String, String>>> WAITING = new ConcurrentHashMap<>();

    /** Asks, and returns the answer. The question is the rest of a JSON object. */
    private static Map<String, String> ask(String question) {
        long n = ASKED.incrementAndGet();
        CompletableFuture<Map<String, String>> answer = new CompletableFuture<>();
        WAITING.put(n, answer);
        OUT.println("{\"n\":" + n + "," + question + "}");
        return answer.join(); // an interruption does not end it: the end of a handling must be written
    }

    private static void read() {
        try (BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                Map<String, String> fields = new ConcurrentHashMap<>();
                for (Matcher m = FIELD.matcher(line); m.find(); ) {
                    fields.put(m.group(1), m.group(2));
                }
                WAITING.remove(Long.parseLong(fields.get("n"))).complete(fields);
            }
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    private static void handle(Event event) throws Exception {
        String name = new String(event.payload(), StandardCharsets.UTF_8); // neither it nor the key has a quotation mark
        Map<String, String> begun =
                ask("\"do\":\"begin\",\"event\":\"" + name + "\",\"key\":\"" + event.key() + "\",\"fence\":\"" + event.fence() + "\"");
        if (!begun.get("ok").equals("true")) {
            throw new IllegalStateException("the key is somebody else's");
        }
        String end = "\"do\":\"end\",\"handling\":" + begun.get("handling") + ",\"outcome\":";
        try {
            double ms = Double.parseDouble(begun.getOrDefault("ms", "0"));
            Thread.sleep((long) ms, (int) (ms % 1 * 999_999)); // the loss of the key interrupts it
            event.checkActive();
        } catch (InterruptedException | RuntimeException e) {
            ask(end + "\"cancelled\"");
            throw e;
        }
        if (!ask(end + "\"done\"").get("ok").equals("true")) {
            throw new IllegalStateException("the key is somebody else's by now");
        }
    }

    /** Runs the application until SIGTERM. */
    public static void main(String[] arguments) {
        Thread reader = new Thread(App::read, "answers");
        reader.setDaemon(true);
        reader.start();
        Worker.builder(App::handle).maxInFlight(256).run();
    }
}
