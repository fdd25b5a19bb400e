package io.ringfence.spring;

import com.fasterxml.jackson.databind.JavaType;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import io.ringfence.client.Event;
import io.ringfence.client.Handler;
import io.ringfence.client.RejectException;
import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.springframework.aop.framework.AopProxyUtils;
import org.springframework.aop.support.AopUtils;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.beans.factory.config.BeanPostProcessor;
import org.springframework.core.MethodIntrospector;
import org.springframework.core.annotation.AnnotatedElementUtils;
import org.springframework.util.ClassUtils;

/** Finds the listeners among the beans, and is the handler that calls the one for an event. */
final class ListenerRegistry implements BeanPostProcessor, Handler {
    private final ObjectProvider<ObjectMapper> mappers;
    private final Map<String, Listener> byTopic = new HashMap<>();
    private Listener forOthers;

    private record Listener(Object bean, Method method, Argument[] arguments) {
        @Override
        public String toString() {
            return ClassUtils.getQualifiedMethodName(method);
        }
    }

    /** Makes an argument of an event. */
    private interface Argument {
        Object of(Event event);
    }

    ListenerRegistry(ObjectProvider<ObjectMapper> mappers) {
        this.mappers = mappers; // asked for when a listener needs it: this object exists before other beans
    }

    @Override
    public Object postProcessAfterInitialization(Object bean, String name) {
        listenersOf(AopProxyUtils.ultimateTargetClass(bean)).forEach((method, annotation) -> add(bean, method, annotation));
        return bean;
    }

    static Map<Method, RingfenceListener> listenersOf(Class<?> type) {
        return MethodIntrospector.selectMethods(type,
                (MethodIntrospector.MetadataLookup<RingfenceListener>) method -> AnnotatedElementUtils.findMergedAnnotation(method, RingfenceListener.class));
    }

    private synchronized void add(Object bean, Method declared, RingfenceListener annotation) {
        Method method = AopUtils.selectInvocableMethod(declared, bean.getClass());
        method.setAccessible(true);
        Listener listener = new Listener(bean, method, argumentsOf(declared));
        if (annotation.topics().length == 0) {
            if (forOthers != null) {
                throw new IllegalStateException("two methods with @RingfenceListener name no topics, " + forOthers + " and " + listener
                        + ": name the topics of one of them");
            }
            forOthers = listener;
        }
        for (String topic : annotation.topics()) {
            Listener other = byTopic.putIfAbsent(topic, listener);
            if (other != null) {
                throw new IllegalStateException("two methods with @RingfenceListener name the topic " + topic + ": " + other + " and " + listener);
            }
        }
    }

    private Argument[] argumentsOf(Method method) {
        Class<?>[] types = method.getParameterTypes();
        boolean fits = method.getReturnType() == void.class
                && (types.length == 1 || types.length == 2 && types[0] == Event.class && types[1] != Event.class);
        if (!fits) {
            throw new IllegalStateException("@RingfenceListener on " + ClassUtils.getQualifiedMethodName(method)
                    + ": want a void method that takes an Event, a payload, or both in this order");
        }
        Argument[] arguments = new Argument[types.length];
        for (int i = 0; i < types.length; i++) {
            arguments[i] = argumentOf(method, i);
        }
        return arguments;
    }

    private Argument argumentOf(Method method, int i) {
        Class<?> type = method.getParameterTypes()[i];
        if (type == Event.class) {
            return event -> event;
        } else if (type == byte[].class) {
            return Event::payload;
        } else if (type == String.class) {
            return event -> new String(event.payload(), StandardCharsets.UTF_8);
        }
        ObjectMapper mapper = mappers.getIfAvailable(ObjectMapper::new);
        JavaType json = mapper.getTypeFactory().constructType(method.getGenericParameterTypes()[i]);
        ObjectReader reader = mapper.readerFor(json);
        return event -> decode(reader, event);
    }

    private static Object decode(ObjectReader reader, Event event) {
        Object value;
        try {
            value = reader.readValue(event.payload());
        } catch (IOException e) {
            throw new RejectException("decode JSON: " + e.getMessage(), e);
        }
        if (value == null) {
            throw new RejectException("decode JSON: the payload holds no value");
        }
        return value;
    }

    /** Reports whether there is a listener at all. */
    synchronized boolean isEmpty() {
        return byTopic.isEmpty() && forOthers == null;
    }

    @Override
    public void handle(Event event) throws Exception {
        Listener listener = byTopic.getOrDefault(event.topic(), forOthers); // no listener is added once events come
        if (listener == null) {
            throw new IllegalStateException("no @RingfenceListener for the topic " + event.topic()
                    + (event.timer().isPresent() ? ": timers come to a method that names no topics" : ""));
        }
        Object[] arguments = new Object[listener.arguments.length];
        for (int i = 0; i < arguments.length; i++) {
            arguments[i] = listener.arguments[i].of(event);
        }
        try {
            listener.method.invoke(listener.bean, arguments);
        } catch (InvocationTargetException e) {
            if (e.getCause() instanceof Exception failure) {
                throw failure;
            } else if (e.getCause() instanceof Error error) {
                throw error;
            }
            throw e;
        }
    }
}
