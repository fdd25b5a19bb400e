package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/testing/eventually"
)

const (
	honestEvery = 200 * time.Millisecond // between two calls of a caller that is let in
	plantedKey  = "planted"              // which only a call that must not run has
)

func (r *router) lane() string { return r.ip + ":16655" }

// callees is a router with lane.listen, its application, and a caller that is let in.
type callees struct {
	*router

	bound   float64      // of its memory
	planted atomic.Int64 // calls of the planted key that have run

	answered, missed, row, rowMax int // calls of the honest caller: with a reply, without, the latter in a row
}

// withCalls starts a router that takes calls by HTTP, lets try attack it while an honest caller calls, and sees that it is still there, within its memory bound, and that no
// planted call has run. The caller may miss its answers for at most so many calls in a row.
func withCalls(name string, missedMax int, try func(ctx context.Context, c *callees) (finding, error)) func(context.Context, *lab) (finding, error) {
	return func(ctx context.Context, l *lab) (finding, error) {
		if !l.known["lane.listen"] {
			return finding{}, errors.New("this binary takes no calls by HTTP")
		}
		return with(settings{"lane.listen": ":16655", "lane.token_file": l.callTokenFile}, name, func(ctx context.Context, r *router) (finding, error) {
			c := &callees{router: r}
			working, stop := context.WithCancel(ctx)
			defer stop()
			var beside errgroup.Group
			beside.Go(func() error { return c.serve(working) })
			f, err := c.attacked(ctx, missedMax, try)
			stop()
			return f, errors.Join(err, beside.Wait())
		})(ctx, l)
	}
}

// serve is the application of the router.
func (c *callees) serve(ctx context.Context) error {
	err := client.Run(ctx, c.app(), func(context.Context, *client.Event) error { return nil }, client.WithLogger(slog.New(slog.DiscardHandler)),
		client.WithCall("charge", func(_ context.Context, call *client.Call) ([]byte, error) {
			if call.Key == plantedKey {
				c.planted.Add(1)
			}
			return []byte("charged"), nil
		}))
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// call makes an honest call.
func (c *callees) call(ctx context.Context) error {
	code, said, err := askAt(ctx, c.lane(), http.MethodPost, "/v1/keys/honest/calls/charge", "5", "Authorization", "Bearer "+callToken)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%d %.100q", code, said)
	}
	return err
}

func (c *callees) attacked(ctx context.Context, missedMax int, try func(ctx context.Context, c *callees) (finding, error)) (f finding, err error) {
	if err := eventually.Ask(ctx, startMax, "calls are answered", func() error { return c.call(ctx) }); err != nil {
		return f, err
	}
	if c.bound, err = c.metric(ctx, "ringfence_memory_bound_bytes"); err != nil {
		return f, err
	}
	calling, stop := context.WithCancel(ctx)
	defer stop()
	var honest sync.WaitGroup
	honest.Go(func() {
		for backoff.Sleep(calling, honestEvery) == nil {
			switch err := c.call(calling); {
			case calling.Err() != nil:
			case err == nil:
				c.answered, c.row = c.answered+1, 0
			default:
				c.missed, c.row = c.missed+1, c.row+1
				c.rowMax = max(c.rowMax, c.row)
			}
		}
	})
	f, err = try(ctx, c)
	stop()
	honest.Wait()
	if err != nil {
		return f, err
	}
	peak, err := peakOf(c.pid())
	if err != nil {
		return f, err
	}
	if err := eventually.Ask(ctx, 15*time.Second, "calls are answered again", func() error { return c.call(ctx) }); err != nil {
		f.broken = true
		f.seen += "; afterwards: " + err.Error()
	}
	f.broken = f.broken || c.rowMax > missedMax || c.planted.Load() > 0 || float64(peak) > c.bound
	f.seen += fmt.Sprintf("; an honest caller got %d answers, and missed %d, %d in a row; %d planted calls ran; %s of memory, %s is the bound",
		c.answered, c.missed, c.rowMax, c.planted.Load(), mebibytes(peak), mebibytes(int64(c.bound)))
	return f, nil
}

// rejected returns how many connections and requests of lane.listen were rejected, by reason, since before.
func (c *callees) rejected(ctx context.Context, before map[string]float64) (words string, all float64, err error) {
	after, err := c.metrics(ctx)
	if err != nil {
		return "", 0, err
	}
	var parts []string
	for _, series := range []string{"listener_rejected_total{listener=\"lane\",reason=\"", "calls_refused_total{reason=\""} {
		for name, value := range after {
			reason, found := strings.CutPrefix(name, "ringfence_"+series)
			if n := value - before[name]; found && n > 0 {
				all += n
				parts = append(parts, fmt.Sprintf("%s %.0f", strings.TrimSuffix(reason, "\"}"), n))
			}
		}
	}
	if all == 0 {
		return "nothing", 0, nil
	}
	return strings.Join(parts, ", "), all, nil
}

// metricsAge is how old the page of metrics may be.
const metricsAge = 2 * time.Second

// judged returns the finding about an attack of which the metrics must tell.
func (c *callees) judged(ctx context.Context, before map[string]float64, broke bool, format string, args ...any) (finding, error) {
	if err := backoff.Sleep(ctx, metricsAge); err != nil {
		return finding{}, err
	}
	words, all, err := c.rejected(ctx, before)
	if err != nil {
		return finding{}, err
	}
	return finding{broke || all == 0, fmt.Sprintf(format, args...) + "; its metrics count: " + words}, nil
}

// head is the beginning of a request for a call, with further lines.
func (c *callees) head(path string, lines ...string) string {
	return "POST " + path + " HTTP/1.1\r\nHost: " + c.lane() + "\r\n" + strings.Join(append(lines, ""), "\r\n")
}

const (
	authorized  = "Authorization: Bearer " + callToken
	chargePath  = "/v1/keys/k/calls/charge"
	plantedPath = "/v1/keys/" + plantedKey + "/calls/charge"
)

// drip opens a connection, sends what begins a request, and then one byte after the other, and opens it again when it is closed, until ctx ends. It returns how
// many were opened.
func (c *callees) drip(ctx context.Context, begin string, every time.Duration) (opened int64) {
	var dialer net.Dialer
	for ctx.Err() == nil {
		conn, err := dialer.DialContext(ctx, "tcp", c.lane())
		if err == nil {
			opened++
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			_, err = io.WriteString(conn, begin)
			for err == nil && backoff.Sleep(ctx, every) == nil {
				_, err = io.WriteString(conn, "x")
			}
			stop()
			_ = conn.Close()
		}
		_ = backoff.Sleep(ctx, 20*time.Millisecond) // ctx ends the loop
	}
	return opened
}

const (
	slowCallers  = 1500 // more than lane.connections_max
	slowFor      = 9 * time.Second
	laneFilesMax = 1024 + 256 // files and sockets: lane.connections_max, and those of a router at rest
)

// slowCalls: connections whose headers or bodies come slowly, in greater number than the listener takes, leave callers that are let in theirs.
var slowCalls = withCalls("slow-calls", probesMissedMax, func(ctx context.Context, c *callees) (finding, error) {
	before, err := c.metrics(ctx)
	if err != nil {
		return finding{}, err
	}
	attacking, stop := context.WithTimeout(ctx, slowFor)
	defer stop()
	var opened atomic.Int64
	var all sync.WaitGroup
	for i := range slowCallers {
		all.Go(func() {
			switch i % 3 {
			case 0: // headers without an end
				opened.Add(c.drip(attacking, c.head(chargePath, "X-Slow: "), time.Second))
			case 1: // a body, without the token
				opened.Add(c.drip(attacking, c.head(chargePath, "Content-Length: 1048576", ""), time.Second))
			default: // nothing at all
				opened.Add(c.drip(attacking, "", time.Minute))
			}
		})
	}
	files := 0
	for backoff.Sleep(attacking, 500*time.Millisecond) == nil {
		n, err := filesOf(c.pid())
		if err != nil {
			return finding{}, err
		}
		files = max(files, n)
	}
	all.Wait()
	return c.judged(ctx, before, files > laneFilesMax, "%d slow callers opened %d connections in %v; %d files at most", slowCallers, opened.Load(), slowFor, files)
})

const (
	largeCallers   = 200
	largeFor       = 8 * time.Second
	largeMissedMax = 25 // calls are refused while payloads have no room: for the 5 s in which a body must have come
)

// largeCalls: a caller with the token that sends large bodies, chunks without an end, or announces bodies that never come, takes the room of payloads, and no more.
var largeCalls = withCalls("large-calls", largeMissedMax, func(ctx context.Context, c *callees) (finding, error) {
	before, err := c.metrics(ctx)
	if err != nil {
		return finding{}, err
	}
	attacking, stop := context.WithTimeout(ctx, largeFor)
	defer stop()
	var sent atomic.Int64
	var all sync.WaitGroup
	block := strings.Repeat("x", 64<<10)
	chunk := fmt.Sprintf("%x\r\n%s\r\n", len(block), block)
	for i := range largeCallers {
		all.Go(func() {
			switch i % 3 {
			case 0: // it never comes
				sent.Add(c.drip(attacking, c.head(chargePath, authorized, "Content-Length: 1048576", ""), time.Second))
			case 1: // larger than a payload may be
				sent.Add(c.flood(attacking, c.head(chargePath, authorized, "Content-Length: 4294967296", ""), block))
			default: // without an end
				sent.Add(c.flood(attacking, c.head(chargePath, authorized, "Transfer-Encoding: chunked", ""), chunk))
			}
		})
	}
	all.Wait()
	return c.judged(ctx, before, sent.Load() < largeCallers, "%d callers with the token sent %d bodies", largeCallers, sent.Load())
})

// flood opens connections one after the other until ctx ends, and sends the same block on each until it is closed. It returns how many it opened.
func (c *callees) flood(ctx context.Context, begin, block string) (opened int64) {
	var dialer net.Dialer
	for ctx.Err() == nil {
		conn, err := dialer.DialContext(ctx, "tcp", c.lane())
		if err == nil {
			opened++
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			_, err = io.WriteString(conn, begin)
			for err == nil {
				_, err = io.WriteString(conn, block)
			}
			stop()
			_ = conn.Close()
		}
		_ = backoff.Sleep(ctx, 20*time.Millisecond) // ctx ends the loop
	}
	return opened
}

// hidden is a request that must not run, behind another one.
func (c *callees) hidden() string {
	return c.head(plantedPath, authorized, "Content-Length: 1", "", "5")
}

// malformed returns requests that must not run, by what is wrong with them. All have the token.
func (c *callees) malformed() map[string]string {
	all := map[string]string{
		"two lengths that differ":      c.head(plantedPath, authorized, "Content-Length: 1", fmt.Sprintf("Content-Length: %d", 1+len(c.hidden())), "", "5"+c.hidden()),
		"two lengths in one header":    c.head(plantedPath, authorized, "Content-Length: 1, 2", "", "5"+c.hidden()),
		"a length before chunks":       c.head(chargePath, authorized, "Content-Length: 4", "Transfer-Encoding: chunked", "", "0\r\n\r\n"+c.hidden()),
		"a length behind chunks":       c.head(chargePath, authorized, "Transfer-Encoding: chunked", "Content-Length: 4", "", "0\r\n\r\n"+c.hidden()),
		"two encodings":                c.head(plantedPath, authorized, "Transfer-Encoding: chunked", "Transfer-Encoding: identity", "", "0\r\n\r\n"+c.hidden()),
		"an unknown encoding":          c.head(plantedPath, authorized, "Transfer-Encoding: xchunked", "", "5"+c.hidden()),
		"a space before the colon":     c.head(plantedPath, authorized, "Content-Length : 1", "", "5"+c.hidden()),
		"a length with a sign":         c.head(plantedPath, authorized, "Content-Length: +1", "", "5"),
		"a negative length":            c.head(plantedPath, authorized, "Content-Length: -1", "", "5"),
		"a length of 2^64":             c.head(plantedPath, authorized, "Content-Length: 18446744073709551616", "", "5"),
		"a folded header":              c.head(plantedPath, " "+authorized, "Content-Length: 1", "", "5"),
		"a bad chunk":                  c.head(plantedPath, authorized, "Transfer-Encoding: chunked", "", "zz\r\n5\r\n0\r\n\r\n"),
		"a chunk of 2^64":              c.head(plantedPath, authorized, "Transfer-Encoding: chunked", "", "10000000000000000\r\n5\r\n0\r\n\r\n"),
		"a chunk that ends early":      c.head(plantedPath, authorized, "Transfer-Encoding: chunked", "", "5\r\n5\r\n0\r\n\r\n"),
		"a body where none is wanted":  strings.Replace(c.head("/nowhere", authorized, fmt.Sprintf("Content-Length: %d", len(c.hidden())), "", c.hidden()), "POST", "GET", 1),
		"a wrong version":              strings.Replace(c.head(plantedPath, authorized, "Content-Length: 1", "", "5"), "HTTP/1.1", "HTTP/9.9", 1),
		"HTTP/2":                       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"TLS":                          "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x00", 200),
		"no host":                      "POST " + plantedPath + " HTTP/1.1\r\n" + authorized + "\r\nContent-Length: 1\r\n\r\n5",
		"two hosts":                    c.head(plantedPath, "Host: evil.example", authorized, "Content-Length: 1", "", "5"),
		"a header of 1 MiB":            c.head(plantedPath, authorized, "X-Large: "+strings.Repeat("x", 1<<20), "Content-Length: 1", "", "5"),
		"10,000 headers":               c.head(plantedPath, authorized, strings.Repeat("X-Many: x\r\n", 10_000)+"Content-Length: 1", "", "5"),
		"an id of 1 MiB":               c.head(plantedPath, authorized, "Idempotency-Key: "+strings.Repeat("i", 1<<20), "Content-Length: 1", "", "5"),
		"a page of another site":       c.head(plantedPath, authorized, "Origin: https://evil.example", "Content-Length: 1", "", "5"),
		"a body that is too large":     c.head(plantedPath, authorized, "Content-Length: 1048577", "", strings.Repeat("x", 1<<20+1)),
		"a body that is too large (2)": c.head(plantedPath, authorized, "Transfer-Encoding: chunked", "", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", 1<<20+1, strings.Repeat("x", 1<<20+1))),
	}
	for _, timeout := range []string{"-1", "0", "0s", "1e999", "NaN", "Inf", "601", "11m", "9999999999999h", "-9223372036854775808ns", "1s1", "", "\x01", strings.Repeat("9", 8000)} {
		all[fmt.Sprintf("the timeout %.20q", timeout)] = c.head(plantedPath, authorized, "Ringfence-Timeout: "+timeout, "Content-Length: 1", "", "5")
	}
	for _, id := range []string{"", strings.Repeat("i", 129), "a\x00b", "a\rb"} {
		all[fmt.Sprintf("the id %.20q", id)] = c.head(plantedPath, authorized, "Idempotency-Key: "+id, "Content-Length: 1", "", "5")
	}
	for _, header := range []string{"Idempotency-Key: a", "Ringfence-Timeout: 1"} {
		all["two times "+header] = c.head(plantedPath, authorized, header, header, "Content-Length: 1", "", "5")
	}
	for _, path := range []string{
		"/v1/keys/%/calls/charge", "/v1/keys/%zz/calls/charge", "/v1/keys/planted%/calls/charge", "/v1/keys/planted%2/calls/charge", "/v1/keys//calls/charge", "/v1/keys/" + strings.Repeat("k", 4097) + "/calls/charge",
		"/v1/keys/" + strings.Repeat("%41", 4097) + "/calls/charge", "/v1/keys/" + plantedKey + "/calls/charge%00", "/v1/keys/" + plantedKey + "/calls/charge%0d%0aX-Planted:%201",
		"/v1/keys/" + plantedKey + "/calls/", "/v1/keys/" + plantedKey + "/calls/" + strings.Repeat("m", 65), "/v1/keys/" + plantedKey + "/calls/charge/", "/v1/keys/" + plantedKey + "/calls/charge/../charge",
		"/v1/keys/" + plantedKey + "/calls/a%2fb", "/v1/keys/x/../" + plantedKey + "/calls/charge", "//v1/keys/" + plantedKey + "/calls/charge",
		"/V1/keys/" + plantedKey + "/calls/charge", "/v1/keys/" + plantedKey + "/calls/\xff\xfe", "*", "evil.example:80",
	} {
		all[fmt.Sprintf("the path %.40q", path)] = c.head(path, authorized, "Content-Length: 1", "", "5")
	}
	return all
}

// answerWait is how long an answer to a malformed request may take: as long as a body that does not come, and more.
const answerWait = 8 * time.Second

// statusOf sends bytes on a connection of its own, and returns the status of the answer; 0 if the connection is closed without one. A connection that stays
// open without an answer is an error.
func (c *callees) statusOf(ctx context.Context, sent string) (status int, err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", c.lane())
	if err != nil {
		return 0, err
	}
	_ = conn.SetDeadline(time.Now().Add(answerWait)) // it is a connection
	var sending sync.WaitGroup
	sending.Go(func() { _, _ = io.WriteString(conn, sent) }) // it may be closed before it has taken all
	defer sending.Wait()
	defer conn.Close()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	var late net.Error
	switch {
	case errors.As(err, &late) && late.Timeout():
		return 0, errors.New("no answer, and it is open")
	case err != nil:
		return 0, nil // closed
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body) // a hidden request runs now or never
	if response.Header.Get("X-Planted") != "" {
		return response.StatusCode, errors.New("it has put a header into the answer")
	}
	return response.StatusCode, nil
}

// malformedCalls: no call is made of a request that is malformed, breaks a bound, or hides another one, and each is answered or closed soon.
var malformedCalls = withCalls("malformed-calls", probesMissedMax, func(ctx context.Context, c *callees) (finding, error) {
	before, err := c.metrics(ctx)
	if err != nil {
		return finding{}, err
	}
	requests := c.malformed()
	var mu sync.Mutex
	statuses, wrong := map[int]int{}, []string{}
	var all errgroup.Group
	all.SetLimit(8)
	for what, request := range requests {
		all.Go(func() error {
			status, err := c.statusOf(ctx, request)
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
			switch hides := strings.Contains(what, "chunks"); {
			case err != nil:
				wrong = append(wrong, what+": "+err.Error())
			case status == http.StatusOK && !hides: // the call in front of a hidden one may run
				wrong = append(wrong, fmt.Sprintf("%s: %d", what, status))
			}
			return nil
		})
	}
	_ = all.Wait() // it returns no error
	return c.judged(ctx, before, len(wrong) > 0, "%d malformed requests, statuses %v, taken: %.400q", len(requests), statuses, wrong)
})

const wrongTokens = 3000

// wrongCallTokens: callers with wrong tokens run nothing, whatever they put into the header, and are counted.
var wrongCallTokens = withCalls("call-tokens", probesMissedMax, func(ctx context.Context, c *callees) (finding, error) {
	before, err := c.metrics(ctx)
	if err != nil {
		return finding{}, err
	}
	headers := []string{
		"X: x", "Authorization:", "Authorization: Bearer", "Authorization: Bearer ", "Authorization: Basic " + callToken, "Authorization: Bearer " + callToken[1:],
		"Authorization: Bearer " + callToken[:len(callToken)-1], "Authorization: Bearer " + callToken + "x", "Authorization: Bearer " + strings.ToUpper(callToken), "Authorization: Bearer " + strings.Repeat("x", 8000),
		"Authorization: Bearer " + adminToken, "Authorization: Bearer " + appToken, "Cookie: token=" + callToken, "Authorization: Bearer \xff\xfe", "X-Authorization: Bearer " + callToken,
	}
	var next, unauthorized, other atomic.Int64
	beside(16, func() int64 {
		for i := next.Add(1); i <= wrongTokens && ctx.Err() == nil; i = next.Add(1) {
			status, err := c.statusOf(ctx, c.head(plantedPath, headers[int(i)%len(headers)], "Connection: close", "Content-Length: 1", "", "5"))
			if err == nil && status == http.StatusUnauthorized {
				unauthorized.Add(1)
			} else {
				other.Add(1)
			}
		}
		return 0
	})
	if err := backoff.Sleep(ctx, metricsAge); err != nil {
		return finding{}, err
	}
	after, err := c.metric(ctx, `ringfence_listener_rejected_total{listener="lane",reason="token"}`)
	if err != nil {
		return finding{}, err
	}
	counted := after - before[`ringfence_listener_rejected_total{listener="lane",reason="token"}`]
	return c.judged(ctx, before, other.Load() > wrongTokens/100 || counted < float64(unauthorized.Load()), "%d calls with %d forms of a wrong token: 401 for %d, another answer or none for %d", wrongTokens, len(headers), unauthorized.Load(), other.Load())
})
