package source

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/pulsarlog"
	"github.com/ringfence/router/internal/broker/pulsarread"
)

// parkingInMemory runs a test in a bubble, with a connection to the parking topic at a broker in memory that has not subscribed yet. The broker asks script
// first.
func parkingInMemory(t *testing.T, script func(*fakebroker.Link, *pulsarpb.BaseCommand) bool, test func(*testing.T, *pulsarParking, *fakebroker.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.Topics, cfg.Subscription = []string{"t"}, "s"
		cluster := fakebroker.New()
		defer cluster.Close()
		cluster.Broker("a:6650").Script = script
		p := NewParking(cfg, nil, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
		c, err := p.newPulsar(Access{Client: pulsar.ClientOptions{URL: "pulsar://a:6650"}, Entries: entries.Access{Dial: cluster.Dial}})
		if err != nil {
			t.Fatal(err)
		}
		c.writer.client = &fakeClient{}
		test(t, c, cluster)
	})
}

// A broker that does not answer does not delay a member that stops while it brings letters back.
func TestReadingsOfTheParkingTopicEndWithTheirContext(t *testing.T) {
	var silent []pulsarpb.BaseCommand_Type // the commands without an answer; the broker reads it while the test waits
	ignored := func(_ *fakebroker.Link, c *pulsarpb.BaseCommand) bool { return slices.Contains(silent, c.GetType()) }
	parkingInMemory(t, ignored, func(t *testing.T, c *pulsarParking, cluster *fakebroker.Cluster) {
		silent = []pulsarpb.BaseCommand_Type{pulsarpb.BaseCommand_SUBSCRIBE}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		if err := c.subscribe(ctx); !errors.Is(err, context.Canceled) || time.Since(began) != time.Second {
			t.Errorf("subscribing ended with %v after %v, want %v after 1s", err, time.Since(began), context.Canceled)
		}
		synctest.Wait()
		silent = nil
		if err := c.subscribe(t.Context()); err != nil {
			t.Fatal(err)
		}
		cluster.Publish(c.cfg.ParkingTopic(), fakebroker.Message("x"), 1)
		got, err := c.receive(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		silent = []pulsarpb.BaseCommand_Type{pulsarpb.BaseCommand_ACK, pulsarpb.BaseCommand_CLOSE_CONSUMER}
		began = time.Now()
		if err := c.ack(Ack{Ref: got[0].Ref}); err == nil || time.Since(began) != parkingAnswer {
			t.Errorf("an ack without an answer ended with %v after %v, want an error after %v", err, time.Since(began), parkingAnswer)
		}
		began = time.Now()
		if c.close(); time.Since(began) > 2*c.cfg.CloseTimeout {
			t.Errorf("closing took %v, want %v", time.Since(began), c.cfg.CloseTimeout)
		}
		if n := c.writer.client.(*fakeClient).closed.Load(); n != 1 {
			t.Errorf("the client that writes was closed %d times, want once", n)
		}
	})
}

// A reading waits for another consumer of the parking topic, for a bounded time, and says that it was there.
func TestReadingsOfTheParkingTopicWaitForEachOther(t *testing.T) {
	for busy, want := range map[int]error{3: nil, 1000: ErrParkingBusy} { // attempts that are refused
		refused := func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
			if c.GetType() != pulsarpb.BaseCommand_SUBSCRIBE {
				return false
			}
			if c.GetSubscribe().GetSubType() != pulsarpb.CommandSubscribe_EXCLUSIVE || c.GetSubscribe().GetInitialPosition() != pulsarpb.CommandSubscribe_EARLIEST {
				t.Errorf("it subscribes with %v", c)
			}
			if busy--; busy < 0 {
				return false
			}
			l.Refuse(c.GetSubscribe().GetRequestId(), pulsarpb.ServerError_CONSUMER_BUSY, "Exclusive consumer is already connected")
			return true
		}
		parkingInMemory(t, refused, func(t *testing.T, c *pulsarParking, _ *fakebroker.Cluster) {
			defer c.close()
			ctx, cancel := context.WithTimeout(t.Context(), 2*parkingBusyMax)
			defer cancel()
			began := time.Now()
			if err := c.subscribe(ctx); !errors.Is(err, want) || (err == nil) != (want == nil) || time.Since(began) > parkingBusyMax {
				t.Errorf("it ends with %v after %v, want %v", err, time.Since(began), want)
			}
		})
	}
}

// A reading holds no partition of the parking topic while it waits for another one: two readings could wait for each other.
func TestAReadingWithoutAllPartitionsHasNone(t *testing.T) {
	taken := true
	refused := func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
		if c.GetType() != pulsarpb.BaseCommand_SUBSCRIBE || !taken || !strings.HasSuffix(c.GetSubscribe().GetTopic(), "-partition-1") {
			return false
		}
		l.Refuse(c.GetSubscribe().GetRequestId(), pulsarpb.ServerError_CONSUMER_BUSY, "Exclusive consumer is already connected")
		return true
	}
	parkingInMemory(t, refused, func(t *testing.T, c *pulsarParking, cluster *fakebroker.Cluster) {
		defer c.close()
		topic := c.cfg.ParkingTopic()
		cluster.Partition(topic, 3)
		consumers := func() (of [3]int) {
			for i, name := range []string{"-partition-0", "-partition-1", "-partition-2"} {
				of[i] = len(cluster.Permits(topic + name))
			}
			return of
		}
		if err := c.trySubscribe(t.Context()); !pulsarread.IsTaken(err) {
			t.Errorf("a taken partition: %v", err)
		}
		synctest.Wait()
		if got := consumers(); got != [3]int{} {
			t.Errorf("the partitions have %v consumers, want none", got)
		}
		taken = false
		if err := c.trySubscribe(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := consumers(); got != [3]int{1, 1, 1} {
			t.Errorf("the partitions have %v consumers, want one each", got)
		}
	})
}

// A letter in chunks is removed when the broker has confirmed all of them, and a refusal of one is not lost.
func TestALetterInChunksIsRemovedWhole(t *testing.T) {
	acks, refuse := 0, 0
	counted := func(l *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
		if c.GetType() != pulsarpb.BaseCommand_ACK {
			return false
		}
		if acks++; acks != refuse {
			return false
		}
		l.Send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_ACK_RESPONSE.Enum(), AckResponse: &pulsarpb.CommandAckResponse{
			ConsumerId: c.GetAck().ConsumerId, RequestId: c.GetAck().RequestId, Error: pulsarpb.ServerError_UNKNOWN_ERROR.Enum(),
		}})
		return true
	}
	parkingInMemory(t, counted, func(t *testing.T, c *pulsarParking, cluster *fakebroker.Cluster) {
		defer c.close()
		if err := c.subscribe(t.Context()); err != nil {
			t.Fatal(err)
		}
		topic := c.cfg.ParkingTopic()
		for _, refused := range []int{0, 1, 2, 3} {
			for i, part := range []string{"ab", "cd", "e"} {
				cluster.Publish(topic, fakebroker.Chunk("u", i, 3, 5, part), 1)
			}
			got, err := c.receive(t.Context(), nil)
			if err != nil || string(got[0].Entry.Payload(0)) != "abcde" {
				t.Fatalf("%+v, %v", got, err)
			}
			synctest.Wait()
			acks, refuse = 0, refused
			if err := c.ack(Ack{Ref: got[0].Ref}); (err == nil) != (refused == 0) {
				t.Errorf("with refusal %d the ack ends with %v", refused, err)
			}
			synctest.Wait()
			if left := len(cluster.Backlog(topic)); refused == 0 && left > 0 || acks != 3 {
				t.Errorf("with refusal %d there were %d acks, and %d entries are left", refused, acks, left)
			}
		}
	})
}

// The consumers that only make a subscription ask for no message, of any topic partition: Pulsar's client decompresses what it gets without a bound.
func TestKeepersGetNoMessage(t *testing.T) {
	var mu sync.Mutex // guards the next
	commands := make(map[pulsarpb.BaseCommand_Type]int)
	cluster := fakebroker.New()
	defer cluster.Close()
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	broker := cluster.Broker(listener.Addr().String())
	broker.Script = func(_ *fakebroker.Link, c *pulsarpb.BaseCommand) bool {
		mu.Lock()
		defer mu.Unlock()
		commands[c.GetType()]++
		return false
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			broker.Accept(conn)
		}
	}()
	cfg := DefaultConfig()
	cfg.Topics, cfg.Subscription = []string{"t"}, "s"
	client := new(sdk)
	if err := client.open(t.Context(), pulsar.ClientOptions{URL: "pulsar://" + listener.Addr().String(), Logger: pulsarlog.New(slog.New(slog.DiscardHandler))}); err != nil {
		t.Fatal(err)
	}
	defer client.close(func() {})
	const attempts, partitions = 20, 3
	cfg = cfg.Resolved()
	cluster.Partition(cfg.ParkingTopic(), partitions)
	p := newOutlets(cfg, client)
	for range attempts {
		if err := p.byTopic[cfg.ParkingTopic()].keeper.attach(); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	made, closed, asked := commands[pulsarpb.BaseCommand_SUBSCRIBE], commands[pulsarpb.BaseCommand_CLOSE_CONSUMER], commands[pulsarpb.BaseCommand_FLOW]
	if want := attempts * partitions; made != want || closed != want || asked != 0 {
		t.Errorf("%d consumers were made, %d closed, and %d times messages were asked for, want %d, %d and none", made, closed, asked, want, want)
	}
}
