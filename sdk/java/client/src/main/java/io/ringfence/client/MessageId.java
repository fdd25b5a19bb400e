package io.ringfence.client;

/**
 * Pulsar's id of an event.
 *
 * @param ledger the ledger
 * @param entry the entry in the ledger
 * @param batch the index in the producer's batch, -1 without a batch
 * @param topicPartition the partition of the topic, -1 if the topic is not partitioned
 */
public record MessageId(long ledger, long entry, int batch, int topicPartition) {
    /**
     * Returns the id as Pulsar's tools write it.
     *
     * @return ledger:entry:partition:batch
     */
    @Override
    public String toString() {
        return ledger + ":" + entry + ":" + topicPartition + ":" + batch;
    }
}
