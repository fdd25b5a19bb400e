// Package deploy holds what puts routers to work: the image, the compose file, the
// Helm charts and the monitoring mixin. There is no code in it but its tests, which
// ask the tools that these files are made for.
package deploy
