// Package deploy holds the files that deploy routers: the image, the compose file, the Helm
// charts and the monitoring mixin. Its only Go code is tests, which check these files with the
// tools that read them.
package deploy
