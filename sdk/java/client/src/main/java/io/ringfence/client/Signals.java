package io.ringfence.client;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;

/**
 * Calls a function at SIGTERM and SIGINT instead of the JVM's own reaction, which ends the process with code 143 or 130. It
 * uses sun.misc.Signal, which every JDK has in its module jdk.unsupported, by reflection: the compiler warns of each use.
 *
 * <p>A signal has one handler in a process, and a process may have several workers, which end in any order. So the first one installs a handler that calls the
 * functions of all, and the last one restores what was there before.
 */
final class Signals implements AutoCloseable {
    private static final List<Signals> ALL = new ArrayList<>(); // guards itself and RESTORE
    private static final List<Runnable> RESTORE = new ArrayList<>();

    private final Runnable action;

    /** Installs the function; throws if the JVM does not let it, as with -Xrs. */
    Signals(Runnable action) {
        this.action = action;
        synchronized (ALL) {
            if (ALL.isEmpty()) {
                install();
            }
            ALL.add(this);
        }
    }

    private static void install() {
        InvocationHandler call = (proxy, method, args) -> switch (method.getName()) {
            case "handle" -> {
                signalled();
                yield null;
            }
            case "hashCode" -> System.identityHashCode(proxy);
            case "equals" -> proxy == args[0];
            default -> "Ringfence's signal handler";
        };
        try {
            Class<?> signal = Class.forName("sun.misc.Signal");
            Class<?> handler = Class.forName("sun.misc.SignalHandler");
            Object ours = Proxy.newProxyInstance(Signals.class.getClassLoader(), new Class<?>[] {handler}, call);
            for (String name : List.of("TERM", "INT")) {
                Object number = signal.getConstructor(String.class).newInstance(name);
                Object before = signal.getMethod("handle", signal, handler).invoke(null, number, ours);
                RESTORE.add(() -> {
                    try {
                        signal.getMethod("handle", signal, handler).invoke(null, number, before);
                    } catch (ReflectiveOperationException e) {
                        throw new IllegalStateException(e);
                    }
                });
            }
        } catch (InvocationTargetException e) {
            restore();
            throw new IllegalStateException(e.getCause());
        } catch (ReflectiveOperationException e) {
            restore();
            throw new IllegalStateException(e);
        }
    }

    private static void signalled() {
        List<Signals> all;
        synchronized (ALL) {
            all = List.copyOf(ALL);
        }
        RuntimeException first = null;
        for (Signals one : all) {
            try {
                one.action.run();
            } catch (RuntimeException e) { // as of a worker that has just ended: the others must learn of the signal
                first = first == null ? e : first;
            }
        }
        if (first != null) {
            throw first;
        }
    }

    private static void restore() {
        RESTORE.forEach(Runnable::run);
        RESTORE.clear();
    }

    @Override
    public void close() {
        synchronized (ALL) {
            if (ALL.remove(this) && ALL.isEmpty()) {
                restore();
            }
        }
    }
}
