package io.ringfence.client;

/** The kind of answer that the router gets about an event. */
public enum ResultKind {
    /** The handler succeeded: the event is acked. */
    DONE(1),
    /** The handler failed: the event is retried. */
    RETRY(2),
    /** The event will never succeed: it goes to the dead letter topic. */
    REJECT(3),
    /** The handler was not called. Not a failure: the event is delivered again. */
    NOT_STARTED(4),
    /** The handler was cancelled and did not succeed. Not a failure, unless it took longer than its timeout. */
    CANCELLED(5);

    /** The number of the kind in the protocol. */
    final int number;

    ResultKind(int number) {
        this.number = number;
    }
}
