// Package pulsarpb has the messages of Pulsar's binary protocol that Ringfence uses, generated from pulsar.proto.
//
// Package wire parses the frequent ones by hand; those here are for the rare ones, and for the tests of the hand-written parsers.
package pulsarpb

//go:generate env GOWORK=off go tool -modfile=../../../../tools/buf.mod buf generate
