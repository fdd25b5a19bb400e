package io.ringfence.conformance;

import io.ringfence.client.Call;
import io.ringfence.client.CallFailureException;
import io.ringfence.client.Event;
import io.ringfence.client.Firing;
import io.ringfence.client.LeaseClock;
import io.ringfence.client.RejectException;
import io.ringfence.client.RetryAfterException;
import io.ringfence.client.Timer;
import io.ringfence.client.Times;
import io.ringfence.client.Worker;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The Java SDK's worker for {@code router conformance}: its handler obeys the instruction in the payload, and writes a line
 * when it starts and one when it ends.
 */
public final class ConformanceWorker {
    /** An instruction is flat JSON of numbers and words: this SDK brings no library for JSON. */
    private static final Pattern FIELD = Pattern.compile("\"(id|do|ms|bytes|then)\"\\s*:\\s*\"?([a-z_0-9]+)\"?");

    private static final FileOutputStream OUT = new FileOutputStream(FileDescriptor.out);

    private record Instruction(long id, String verb, long ms, int bytes, String then) {
        static Instruction parse(byte[] payload) {
            long id = 0;
            String verb = "";
            long ms = 0;
            int bytes = 0;
            String then = "done";
            Matcher field = FIELD.matcher(new String(payload, StandardCharsets.UTF_8));
            while (field.find()) {
                switch (field.group(1)) {
                    case "id" -> id = Long.parseLong(field.group(2));
                    case "ms" -> ms = Long.parseLong(field.group(2));
                    case "bytes" -> bytes = Integer.parseInt(field.group(2));
                    case "then" -> then = field.group(2);
                    default -> verb = field.group(2);
                }
            }
            return new Instruction(id, verb, ms, bytes, then);
        }

        /** What it says to do next. */
        Instruction next() {
            return new Instruction(id, then, ms, bytes, "done");
        }
    }

    /** The state of a key: the ids of the instructions that have come to it. */
    private static final class Visitors {
        private final List<Long> ids = new ArrayList<>();
    }

    private ConformanceWorker() {}

    /**
     * Runs the worker until SIGTERM.
     *
     * @param arguments none
     */
    public static void main(String[] arguments) {
        Worker.builder(ConformanceWorker::handle).maxInFlight(Worker.IN_FLIGHT_MAX)
                .call("echo", call -> instructed(call, instruction -> call.payload()))
                .call("obey", call -> instructed(call, instruction -> answer(call, instruction)))
                .schedule("conformance", Times.every(Duration.ofHours(1)), ConformanceWorker::fire).run();
    }

    private static void handle(Event event) throws Exception {
        Instruction instruction = Instruction.parse(event.payload());
        report("start", event.key(), instruction);
        if (event.timer().isPresent()) {
            Timer timer = event.timer().get();
            write("timer " + instruction.id + " " + timer.due().toEpochMilli() + " " + timer.name() + "\n");
        }
        try {
            obey(event, instruction);
        } finally {
            report("end", event.key(), instruction);
        }
    }

    /** What a handler of calls does with its instruction. */
    private interface Answer {
        byte[] to(Instruction instruction) throws Exception;
    }

    private static byte[] instructed(Call call, Answer answer) throws Exception {
        Instruction instruction = Instruction.parse(call.payload());
        report("start", call.key(), instruction);
        try {
            return answer.to(instruction);
        } finally {
            report("end", call.key(), instruction);
        }
    }

    /** What sets a timer: an event, a call or a firing. */
    private interface Timing {
        void after(Duration delay, String name, byte[] payload);
    }

    private static void setTimers(Timing of, long ms) {
        of.after(Duration.ofMillis(ms), "first", new byte[] {'1'});
        of.after(Duration.ZERO, "second", new byte[] {'2'});
    }

    private static byte[] answer(Call call, Instruction instruction) throws Exception {
        switch (instruction.verb) {
            case "after" -> {
                setTimers(call::after, instruction.ms);
                return null;
            }
            case "done" -> {
                return null;
            }
            case "reply" -> {
                byte[] reply = new byte[instruction.bytes];
                Arrays.fill(reply, (byte) 'x');
                return reply;
            }
            case "fail" -> throw new CallFailureException("told", "told to fail" + " é".repeat(500));
            case "crash" -> throw new StackOverflowError("told to crash");
            case "sleep" -> {
                Thread.sleep(instruction.ms); // interrupted when the caller is no longer waiting
                return null;
            }
            default -> throw new IllegalArgumentException("no such instruction: " + instruction.verb);
        }
    }

    private static void obey(Event event, Instruction instruction) throws Exception {
        Duration wait = Duration.ofMillis(instruction.ms);
        switch (instruction.verb) {
            case "done" -> { }
            case "fence" -> write("fence " + instruction.id + " " + event.fence() + "\n");
            case "after" -> setTimers(event::after, instruction.ms);
            case "after_fail" -> {
                setTimers(event::after, instruction.ms);
                throw new IllegalStateException("told to fail");
            }
            case "state" -> {
                visit(event, instruction);
                obey(event, instruction.next());
            }
            case "fail" -> fail();
            case "reject" -> throw new RejectException("told to reject");
            case "retry_after" -> throw new RetryAfterException(wait, "told to wait");
            case "sleep" -> Thread.sleep(wait.toMillis()); // interrupted when the key is lost
            case "progress" -> event.progress();
            case "ignore_cancel" -> sleepWhateverHappens(wait);
            case "crash" -> throw new StackOverflowError("told to crash");
            default -> throw new RejectException("no such instruction: " + instruction.verb);
        }
    }

    private static void visit(Event event, Instruction instruction) throws IOException {
        Visitors visitors = event.state(Visitors.class, () -> {
            write("loaded " + instruction.id + "\n");
            return new Visitors();
        });
        visitors.ids.add(instruction.id);
        write("state " + instruction.id + " " + visitors.ids.get(0) + "\n");
    }

    private static void fail() {
        throw new IllegalStateException("told to fail" + " é".repeat(500)); // longer than any reason may be
    }

    /** The number of missed times is the instruction of a firing. */
    private static void fire(Firing firing) throws IOException {
        write("firing " + firing.time().toEpochMilli() + " " + firing.missed() + " " + firing.attempt() + " " + firing.fence() + "\n");
        switch ((int) firing.missed()) {
            case 1 -> fail();
            case 2 -> setTimers(firing::after, 60_000);
            case 3 -> throw new RejectException("told to reject");
            default -> { }
        }
    }

    private static void sleepWhateverHappens(Duration wait) {
        long end = System.nanoTime() + wait.toNanos();
        for (long left = wait.toNanos(); left > 0; left = end - System.nanoTime()) {
            try {
                Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
            } catch (InterruptedException ignored) {
                // told to
            }
        }
    }

    /** Writes a line in one piece, so that the lines of handlers do not mix. */
    private static void report(String what, String key, Instruction instruction) throws IOException {
        write(what + " " + instruction.id + " " + key + " " + LeaseClock.system().bootNanos() + "\n");
    }

    private static void write(String line) throws IOException {
        byte[] bytes = line.getBytes(StandardCharsets.UTF_8);
        synchronized (OUT) {
            OUT.write(bytes);
        }
    }
}
