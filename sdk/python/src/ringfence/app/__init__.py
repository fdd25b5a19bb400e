"""The protocol between a router and the application beside it."""
