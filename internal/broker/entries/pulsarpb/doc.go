// Package pulsarpb holds the messages of Pulsar's binary protocol that Ringfence uses, generated from pulsar.proto.
//
// Package wire parses the frequent messages by hand. The generated code serves the rare messages and the tests of those parsers.
package pulsarpb

//go:generate ../../../../tools/buf.sh generate
