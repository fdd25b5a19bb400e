package io.ringfence.junit5;

import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolutionException;
import org.junit.jupiter.api.extension.ParameterResolver;

/**
 * Resolves parameters of the type {@link TestRouter} in test methods and in methods that run before or after each test.
 * These share one router. At the end of the test it is closed, which fails the test if handlers do not end.
 */
public final class RingfenceExtension implements ParameterResolver {
    private static final ExtensionContext.Namespace NAMESPACE = ExtensionContext.Namespace.create(RingfenceExtension.class);

    /** Made by JUnit. */
    public RingfenceExtension() {}

    @Override
    public boolean supportsParameter(ParameterContext parameter, ExtensionContext context) {
        return parameter.getParameter().getType() == TestRouter.class;
    }

    @Override
    public TestRouter resolveParameter(ParameterContext parameter, ExtensionContext context) {
        if (context.getTestMethod().isEmpty()) {
            throw new ParameterResolutionException("a TestRouter belongs to one test: take it as a parameter of a test method or of @BeforeEach");
        }
        return context.getStore(NAMESPACE).getOrComputeIfAbsent(Resource.class, key -> new Resource(new TestRouter()), Resource.class).router();
    }

    /** What JUnit closes at the end of the test. */
    private record Resource(TestRouter router) implements ExtensionContext.Store.CloseableResource, AutoCloseable {
        @Override
        public void close() {
            router.close();
        }
    }
}
