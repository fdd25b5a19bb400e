package io.ringfence.client;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;

/**
 * Calls a function at SIGTERM and SIGINT instead of the JVM's own reaction, which ends the process with code 143 or 130. It
 * uses sun.misc.Signal, which every JDK has in its module jdk.unsupported, by reflection: the compiler warns of each use.
 */
final class Signals implements AutoCloseable {
    private final List<Runnable> restore = new ArrayList<>();

    /** Installs the function; throws if the JVM does not let it, as with -Xrs. */
    Signals(Runnable action) {
        InvocationHandler call = (proxy, method, args) -> switch (method.getName()) {
            case "handle" -> {
                action.run();
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
                restore.add(() -> {
                    try {
                        signal.getMethod("handle", signal, handler).invoke(null, number, before);
                    } catch (ReflectiveOperationException e) {
                        throw new IllegalStateException(e);
                    }
                });
            }
        } catch (InvocationTargetException e) {
            close();
            throw new IllegalStateException(e.getCause());
        } catch (ReflectiveOperationException e) {
            close();
            throw new IllegalStateException(e);
        }
    }

    @Override
    public void close() {
        restore.forEach(Runnable::run);
        restore.clear();
    }
}
