package io.ringfence.spring;

import static org.assertj.core.api.Assertions.assertThat;

import io.ringfence.client.Call;
import io.ringfence.client.Event;
import io.ringfence.client.RejectException;
import io.ringfence.client.RetryAfterException;
import io.ringfence.client.Timer;
import io.ringfence.client.Times;
import io.ringfence.junit5.Outcome;
import io.ringfence.junit5.RingfenceTest;
import io.ringfence.junit5.TestRouter;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.DisposableBean;
import org.springframework.boot.LazyInitializationBeanFactoryPostProcessor;
import org.springframework.boot.actuate.health.HealthIndicator;
import org.springframework.boot.actuate.health.Status;
import org.springframework.boot.autoconfigure.AutoConfigurations;
import org.springframework.boot.autoconfigure.jackson.JacksonAutoConfiguration;
import org.springframework.boot.test.context.runner.ApplicationContextRunner;
import org.springframework.context.ApplicationListener;
import org.springframework.context.SmartLifecycle;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.event.ContextClosedEvent;
import org.springframework.context.event.ContextRefreshedEvent;
import org.springframework.context.event.EventListener;
import org.springframework.context.event.SimpleApplicationEventMulticaster;

@RingfenceTest
class RingfenceAutoConfigurationTest {
    private static final String ORDERS = "persistent://public/default/orders";
    private static final String TEXTS = "persistent://public/default/texts";

    record Order(long cents) {}

    static class Listeners {
        final List<Object> seen = new CopyOnWriteArrayList<>();

        @RingfenceListener(topics = ORDERS)
        void order(Event event, Order order) {
            if (order.cents() < 0) {
                throw new RejectException("less than nothing");
            }
            if (order.cents() == 0) {
                throw new RetryAfterException(Duration.ofSeconds(90), "nothing yet");
            }
            seen.add(event.key() + " " + order.cents());
        }

        @RingfenceListener(topics = TEXTS)
        void text(String text) {
            seen.add(text);
        }

        @RingfenceListener
        void other(byte[] payload) throws Exception {
            if (payload.length == 0) {
                throw new Exception("checked");
            }
            seen.add(payload.length);
        }
    }

    @Configuration(proxyBeanMethods = false)
    static class ListenersConfiguration {
        @Bean
        Listeners listeners() {
            return new Listeners();
        }
    }

    /** An application whose worker connects to the router in memory. */
    private static ApplicationContextRunner application(TestRouter router) {
        return new ApplicationContextRunner()
                .withConfiguration(AutoConfigurations.of(JacksonAutoConfiguration.class, RingfenceAutoConfiguration.class))
                .withBean(RingfenceCustomizer.class, () -> router::connect);
    }

    @Test
    void eventsReachTheListenerOfTheirTopic(TestRouter router) {
        application(router).withUserConfiguration(ListenersConfiguration.class).run(context -> {
            Listeners listeners = context.getBean(Listeners.class);
            assertThat(router.deliver(Event.of("alice").topic(ORDERS).payload("{\"cents\": 7}")).outcome().kind()).isEqualTo(Outcome.Kind.DONE);
            assertThat(router.deliver(Event.of("bob").topic(TEXTS).payload("hello")).outcome().kind()).isEqualTo(Outcome.Kind.DONE);
            assertThat(router.deliver(Event.of("carol").topic("persistent://a/b/c").payload("four")).outcome().kind()).isEqualTo(Outcome.Kind.DONE);
            assertThat(listeners.seen).containsExactly("alice 7", "hello", 4);
        });
    }

    @Test
    void aCustomizerRegistersTheHandlersOfCalls(TestRouter router) {
        application(router).withUserConfiguration(ListenersConfiguration.class)
                .withBean("calls", RingfenceCustomizer.class, () -> options -> options.call("echo", Call::payload)).run(context ->
                        assertThat(router.call("alice", "echo", new byte[] {1}).reply()).containsExactly(1));
    }

    @Test
    void aCustomizerDeclaresSchedules(TestRouter router) {
        List<Object> fired = new CopyOnWriteArrayList<>();
        application(router).withUserConfiguration(ListenersConfiguration.class)
                .withBean("schedules", RingfenceCustomizer.class, () -> options -> options.schedule("report", Times.every(Duration.ofHours(1)), firing -> fired.add(firing.time())))
                .run(context -> {
                    assertThat(router.fire("report", Instant.EPOCH, 0).outcome().kind()).isEqualTo(Outcome.Kind.DONE);
                    assertThat(fired).containsExactly(Instant.EPOCH);
                    assertThat(context.getBean(Listeners.class).seen).isEmpty();
                });
    }

    @Test
    void exceptionsOfListenersAreAnswers(TestRouter router) {
        application(router).withUserConfiguration(ListenersConfiguration.class).run(context -> {
            Outcome reject = router.deliver(Event.of("a").topic(ORDERS).payload("{\"cents\": -1}")).outcome();
            assertThat(reject).isEqualTo(new Outcome(Outcome.Kind.REJECT, Duration.ZERO, "less than nothing"));
            Outcome later = router.deliver(Event.of("b").topic(ORDERS).payload("{\"cents\": 0}")).outcome();
            assertThat(later).isEqualTo(new Outcome(Outcome.Kind.RETRY, Duration.ofSeconds(90), "nothing yet"));
            Outcome failed = router.deliver(Event.of("c").topic("x")).outcome();
            assertThat(failed).isEqualTo(new Outcome(Outcome.Kind.RETRY, Duration.ZERO, "java.lang.Exception: checked"));
            for (String broken : List.of("gibberish", "null", "")) {
                Outcome decode = router.deliver(Event.of("d").topic(ORDERS).payload(broken)).outcome();
                assertThat(decode.kind()).as(broken).isEqualTo(Outcome.Kind.REJECT);
                assertThat(decode.reason()).startsWith("decode JSON");
            }
        });
    }

    static class OnlyOrders {
        @RingfenceListener(topics = ORDERS)
        void order(Order order) {}
    }

    @Test
    void aTopicWithoutAListenerIsRetried(TestRouter router) {
        application(router).withBean(OnlyOrders.class).run(context ->
                assertThat(router.deliver(Event.of("a").topic(TEXTS)).outcome().reason()).contains("no @RingfenceListener for the topic " + TEXTS));
    }

    /** The topic of a timer is the routers' own, which no listener names: the reason says where timers come to. */
    @Test
    void aTimerWithoutAListenerForAllTopicsSaysSo(TestRouter router) {
        application(router).withBean(OnlyOrders.class).run(context -> {
            Outcome timer = router.deliver(Event.of("a").topic(ORDERS + "-s-TIMER").timer(new Timer("expire", Instant.EPOCH))).outcome();
            assertThat(timer.reason()).contains("timers come to a method that names no topics");
        });
    }

    static class Slow {
        final CountDownLatch started = new CountDownLatch(1);
        final CountDownLatch release = new CountDownLatch(1);

        @RingfenceListener
        void slow(Event event) throws InterruptedException {
            started.countDown();
            if (!release.await(30, TimeUnit.SECONDS)) {
                throw new IllegalStateException("not released");
            }
        }
    }

    /** The end of the application waits for its listeners. */
    @Test
    void stopDrains(TestRouter router) {
        AtomicReference<TestRouter.Delivery> running = new AtomicReference<>();
        AtomicReference<TestRouter.Delivery> waiting = new AtomicReference<>();
        AtomicReference<Slow> bean = new AtomicReference<>();
        application(router).withPropertyValues("ringfence.max-threads=1", "ringfence.virtual-threads=false")
                .withBean(Slow.class).run(context -> {
                    Slow slow = context.getBean(Slow.class);
                    bean.set(slow);
                    running.set(router.deliver(Event.of("a")));
                    slow.started.await();
                    waiting.set(router.deliver(Event.of("b"))); // no thread is left for it
                    RingfenceWorker worker = context.getBean(RingfenceWorker.class);
                    CompletableFuture<Void> stopped = CompletableFuture.runAsync(worker::stop);
                    assertThat(waiting.get().outcome().kind()).isEqualTo(Outcome.Kind.NOT_STARTED); // the drain has begun
                    assertThat(stopped).isNotDone();
                    CompletableFuture<Void> again = CompletableFuture.runAsync(worker::stop); // the end of the application in another thread
                    Thread.sleep(100);
                    assertThat(again).as("a second stop, which has not waited").isNotDone();
                    assertThat(worker.isRunning()).isTrue();
                    assertThat(running.get().isOver()).isFalse();
                    slow.release.countDown();
                    stopped.get(30, TimeUnit.SECONDS);
                    assertThat(worker.isRunning()).isFalse();
                });
        assertThat(running.get().outcome().kind()).isEqualTo(Outcome.Kind.DONE);
    }

    @Test
    void healthIsThatOfTheSession(TestRouter router) {
        application(router).withBean(OnlyOrders.class).run(context -> {
            router.deliver(Event.of("a").topic(ORDERS).payload("{\"cents\": 1}")).outcome(); // there is a session now
            HealthIndicator health = context.getBean(HealthIndicator.class);
            assertThat(health.health().getStatus()).isEqualTo(Status.UP);
            context.getBean(RingfenceWorker.class).stop();
            assertThat(health.health().getStatus()).isEqualTo(Status.DOWN);
        });
    }

    static class TwoForAll {
        @RingfenceListener
        void one(Event event) {}

        @RingfenceListener
        void two(Event event) {}
    }

    static class WrongParameters {
        @RingfenceListener
        void wrong(Order order, Event event) {}
    }

    @Test
    void mistakesFailTheStart(TestRouter router) {
        application(router).withBean(TwoForAll.class).run(context ->
                assertThat(context).getFailure().rootCause().hasMessageContaining("name the topics of one of them"));
        application(router).withBean(WrongParameters.class).run(context ->
                assertThat(context).getFailure().rootCause().hasMessageContaining("an Event, a payload, or both in this order"));
        application(router).withBean(OnlyOrders.class).withPropertyValues("ringfence.max-in-flight=0").run(context ->
                assertThat(context).getFailure().rootCause().hasMessageContaining("maxInFlight = 0"));
        application(router).withBean(OnlyOrders.class).withPropertyValues("ringfence.state-max=-1").run(context ->
                assertThat(context).getFailure().rootCause().hasMessageContaining("stateMax = -1"));
        application(router).withBean(OnlyOrders.class).withPropertyValues("ringfence.tls.certificate=/some.pem").run(context ->
                assertThat(context).getFailure().rootCause().hasMessageContaining("set certificate and key"));
    }

    @Test
    void doesNotStartWithoutListenersOrIfDisabled(TestRouter router) {
        application(router).run(context -> assertThat(context.getBean(RingfenceWorker.class).isRunning()).isFalse());
        application(router).withBean(OnlyOrders.class).withPropertyValues("ringfence.enabled=false")
                .run(context -> assertThat(context).doesNotHaveBean(RingfenceWorker.class));
    }

    /** Fails the start of the application when the worker runs already, and records what the worker does while beans end. */
    static class FailsAtLast implements DisposableBean {
        final AtomicReference<RingfenceWorker> worker = new AtomicReference<>();
        final List<String> record;

        FailsAtLast(List<String> record) {
            this.record = record;
        }

        @RingfenceListener
        void handle(Event event) {}

        @EventListener
        void refreshed(ContextRefreshedEvent event) {
            RingfenceWorker started = event.getApplicationContext().getBean(RingfenceWorker.class);
            worker.set(started);
            record.add("running: " + started.isRunning());
            throw new IllegalStateException("planted");
        }

        @Override
        public void destroy() {
            record.add("running at the end of its listener: " + worker.get().isRunning());
        }
    }

    /** Spring stops no life cycle of an application that fails to start: it only destroys the beans. */
    @Test
    void anApplicationThatFailsToStartLeavesNoWorker(TestRouter router) {
        List<String> record = new CopyOnWriteArrayList<>();
        FailsAtLast bean = new FailsAtLast(record);
        application(router).withBean(FailsAtLast.class, () -> bean).run(context ->
                assertThat(context).getFailure().hasMessage("planted"));
        assertThat(record).containsExactly("running: true", "running at the end of its listener: false");
        assertThat(bean.worker.get().isRunning()).isFalse();
    }

    /** A bean with a life cycle of its own, in the phase that is Spring's default. */
    static class Store implements SmartLifecycle {
        final Slow slow;
        final TestRouter.Delivery[] running = new TestRouter.Delivery[1];
        volatile boolean started;
        volatile boolean early;

        Store(Slow slow) {
            this.slow = slow;
        }

        @Override
        public void start() {
            started = true;
        }

        @Override
        public void stop() {
            early = !running[0].isOver();
            started = false;
        }

        @Override
        public boolean isRunning() {
            return started;
        }
    }

    /** The listeners that still run need the application's other beans. */
    @Test
    void stopsBeforeTheOtherBeans(TestRouter router) throws Exception {
        AtomicReference<Store> store = new AtomicReference<>();
        CountDownLatch closing = new CountDownLatch(1);
        Slow slow = new Slow() {
            @Override
            @RingfenceListener
            void slow(Event event) throws InterruptedException {
                started.countDown(); // of Slow
                assertThat(closing.await(30, TimeUnit.SECONDS)).isTrue();
                Thread.sleep(300); // until the context has got further
            }
        };
        application(router).withBean(Slow.class, () -> slow).withBean(Store.class)
                .withBean("closing", ApplicationListener.class, () -> event -> {
                    if (event instanceof ContextClosedEvent) {
                        closing.countDown();
                    }
                })
                .run(context -> {
                    store.set(context.getBean(Store.class));
                    store.get().running[0] = router.deliver(Event.of("a"));
                    assertThat(slow.started.await(30, TimeUnit.SECONDS)).isTrue();
                    CompletableFuture.delayedExecutor(300, TimeUnit.MILLISECONDS).execute(closing::countDown); // the context is closing then
                });
        assertThat(store.get().running[0].outcome()).isEqualTo(new Outcome(Outcome.Kind.DONE, Duration.ZERO, ""));
        assertThat(store.get().early).as("stopped while a listener ran").isFalse();
    }

    /** With a multicaster that has an executor, the end of the application is told while it goes on. */
    @Test
    void stopsBeforeTheOtherBeansEvenIfEventsAreAsynchronous(TestRouter router) throws Exception {
        AtomicReference<Store> store = new AtomicReference<>();
        AtomicReference<Slow> slow = new AtomicReference<>();
        SimpleApplicationEventMulticaster events = new SimpleApplicationEventMulticaster();
        events.setTaskExecutor(task -> {
            Thread thread = new Thread(task);
            thread.start();
            try {
                thread.join(300); // it has got to the worker
            } catch (InterruptedException e) {
                throw new IllegalStateException(e);
            }
        });
        application(router).withBean("applicationEventMulticaster", SimpleApplicationEventMulticaster.class, () -> events)
                .withBean(Slow.class).withBean(Store.class).run(context -> {
                    slow.set(context.getBean(Slow.class));
                    store.set(context.getBean(Store.class));
                    store.get().running[0] = router.deliver(Event.of("a"));
                    assertThat(slow.get().started.await(30, TimeUnit.SECONDS)).isTrue();
                    CompletableFuture.delayedExecutor(1, TimeUnit.SECONDS).execute(slow.get().release::countDown); // the context is closing then
                });
        assertThat(store.get().running[0].outcome()).isEqualTo(new Outcome(Outcome.Kind.DONE, Duration.ZERO, ""));
        assertThat(store.get().early).as("stopped while a listener ran").isFalse();
    }

    /** An application may stop and start its context. */
    @Test
    void startsAgain(TestRouter router) {
        application(router).withUserConfiguration(ListenersConfiguration.class).run(context -> {
            for (int i = 0; i < 2; i++) {
                context.stop();
                assertThat(context.getBean(RingfenceWorker.class).isRunning()).isFalse();
                context.start();
                assertThat(router.deliver(Event.of("bob").topic(TEXTS).payload("hello")).outcome().kind()).isEqualTo(Outcome.Kind.DONE);
            }
        });
    }

    /** A customizer may use the option that the health needs. */
    @Test
    void healthGoesOnIfTheApplicationAsksForReadiness(TestRouter router) {
        List<Boolean> ready = new CopyOnWriteArrayList<>();
        application(router).withBean(OnlyOrders.class)
                .withBean("readiness", RingfenceCustomizer.class, () -> options -> options.ready(ready::add)).run(context -> {
                    router.deliver(Event.of("a").topic(ORDERS).payload("{\"cents\": 1}")).outcome();
                    assertThat(context.getBean(HealthIndicator.class).health().getStatus()).isEqualTo(Status.UP);
                    assertThat(ready).containsExactly(true);
                });
    }

    /** Nobody asks for a bean that only has a listener: with spring.main.lazy-initialization it would never exist. */
    @Test
    void listenersAreMadeEvenIfBeansAreLazy(TestRouter router) {
        application(router).withInitializer(context -> context.addBeanFactoryPostProcessor(new LazyInitializationBeanFactoryPostProcessor()))
                .withUserConfiguration(ListenersConfiguration.class).run(context -> {
                    assertThat(context.getBean(RingfenceWorker.class).isRunning()).isTrue();
                    assertThat(router.deliver(Event.of("bob").topic(TEXTS).payload("hello")).outcome().kind()).isEqualTo(Outcome.Kind.DONE);
                });
    }
}
