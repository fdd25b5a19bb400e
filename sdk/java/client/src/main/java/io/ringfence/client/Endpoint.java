package io.ringfence.client;

import java.net.InetAddress;
import java.net.UnknownHostException;

/**
 * The address of the router.
 *
 * @param unixPath the path of a Unix socket, or null
 * @param host the host, or null
 * @param port the port, or 0
 */
record Endpoint(String unixPath, String host, int port) {
    private static final int PORT_MAX = 65_535;

    /** Parses host:port, unix:///path or unix:/path. */
    static Endpoint parse(String text) {
        if (text.startsWith("unix:")) { // app.listen takes unix:PATH too
            String path = text.substring("unix:".length());
            path = path.startsWith("//") ? path.substring(2) : path;
            if (!path.startsWith("/")) {
                throw refused(text);
            }
            return new Endpoint(path, null, 0);
        }
        int colon = text.lastIndexOf(':');
        String host = colon < 0 ? "" : text.substring(0, colon);
        if (host.startsWith("[") && host.endsWith("]")) {
            host = host.substring(1, host.length() - 1);
        } else if (host.indexOf(':') >= 0) {
            throw refused(text); // IPv6 needs the brackets
        }
        try {
            int port = colon < 0 ? 0 : Integer.parseInt(text.substring(colon + 1));
            if (port < 1 || port > PORT_MAX) {
                throw refused(text);
            }
            return new Endpoint(null, host.isEmpty() ? "127.0.0.1" : host, port);
        } catch (NumberFormatException e) {
            throw refused(text);
        }
    }

    private static IllegalArgumentException refused(String text) {
        return new IllegalArgumentException("endpoint \"" + text + "\": want host:port or unix:///path");
    }

    /** Reports whether the connection does not leave this machine. */
    boolean isLocal() {
        if (unixPath != null) {
            return true;
        }
        try {
            return InetAddress.getByName(host).isLoopbackAddress();
        } catch (UnknownHostException e) {
            return false;
        }
    }

    @Override
    public String toString() {
        return unixPath != null ? "unix://" + unixPath : host.indexOf(':') >= 0 ? "[" + host + "]:" + port : host + ":" + port;
    }
}
