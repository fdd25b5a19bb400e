package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.lang.reflect.Proxy;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** The workers of one process at SIGTERM. The handler of the application gets what none of them does, and keeps the process alive. */
class SignalsTest {
    private static final long WAIT_SECONDS = 30;

    private final BlockingQueue<String> told = new LinkedBlockingQueue<>();
    private Object before;

    private static Object handle(Object handler) throws ReflectiveOperationException {
        Class<?> signal = Class.forName("sun.misc.Signal");
        return signal.getMethod("handle", signal, Class.forName("sun.misc.SignalHandler")).invoke(null, term(), handler);
    }

    private static Object term() throws ReflectiveOperationException {
        return Class.forName("sun.misc.Signal").getConstructor(String.class).newInstance("TERM");
    }

    private Set<String> toldBy(int signals) throws Exception {
        Class<?> signal = Class.forName("sun.misc.Signal");
        signal.getMethod("raise", signal).invoke(null, term());
        Set<String> names = new HashSet<>();
        for (int i = 0; i < signals; i++) {
            names.add(told.poll(WAIT_SECONDS, TimeUnit.SECONDS));
        }
        return names;
    }

    @BeforeEach
    void applicationHandlesTheSignal() throws Exception {
        Class<?> handler = Class.forName("sun.misc.SignalHandler");
        before = handle(Proxy.newProxyInstance(handler.getClassLoader(), new Class<?>[] {handler}, (proxy, method, args) -> {
            told.add("application");
            return null;
        }));
    }

    @AfterEach
    void restore() throws Exception {
        handle(before);
    }

    @Test
    void allWorkersAreTold() throws Exception {
        try (Signals one = new Signals(() -> told.add("one")); Signals other = new Signals(() -> told.add("other"))) {
            assertEquals(Set.of("one", "other"), toldBy(2));
        }
        assertEquals(Set.of("application"), toldBy(1));
    }

    @Test
    void aWorkerThatHasEndedLeavesTheSignalToTheOthers() throws Exception {
        Signals one = new Signals(() -> told.add("one"));
        Signals other = new Signals(() -> told.add("other"));
        one.close();
        assertEquals(Set.of("other"), toldBy(1));
        Signals third = new Signals(() -> {
            told.add("third");
            throw new IllegalStateException("it has just ended");
        });
        Signals fourth = new Signals(() -> told.add("fourth"));
        assertEquals(Set.of("other", "third", "fourth"), toldBy(3));
        other.close();
        fourth.close();
        third.close();
        third.close();
        assertEquals(Set.of("application"), toldBy(1));
    }
}
