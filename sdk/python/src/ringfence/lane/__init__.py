"""The protocol between a router and the callers of handlers of keys."""
