// Command bare is the plain gRPC stream of a worker, without an SDK and without its promises: it answers
// each frame at once.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

func main() {
	fmt.Fprintln(os.Stderr, run())
	os.Exit(1)
}

// run works until the stream ends, and returns why it has.
func run() error {
	conn, err := grpc.NewClient("passthrough:///"+os.Getenv("RINGFENCE_APP_ENDPOINT"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(66<<20)))
	if err != nil {
		return err
	}
	wire, err := appv1.NewAppServiceClient(conn).Work(context.Background())
	if err != nil {
		return err
	}
	var mu sync.Mutex // Send is not safe for concurrent use
	send := func(f *appv1.WorkRequest) error {
		mu.Lock()
		defer mu.Unlock()
		return wire.Send(f)
	}
	if err := send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{MaxInFlight: 1000, Sdk: "bare"}}}); err != nil {
		return err
	}
	var pings sync.WaitGroup // it lasts as long as the process
	pings.Go(func() {
		for k := uint64(1); send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Ping{Ping: &appv1.Ping{K: k}}}) == nil; k++ {
			time.Sleep(200 * time.Millisecond)
		}
	})
	for number := uint64(1); ; {
		f, err := wire.Recv()
		if err != nil {
			return err
		}
		deliveries := f.GetDeliveries()
		if deliveries == nil {
			continue
		}
		results := make([]*appv1.Result, 0, len(deliveries.GetDeliveries()))
		for _, d := range deliveries.GetDeliveries() {
			results = append(results, &appv1.Result{DeliveryId: d.GetDeliveryId(), Kind: appv1.ResultKind_RESULT_KIND_DONE})
		}
		err = send(&appv1.WorkRequest{Receipt: deliveries.GetNumber(), Frame: &appv1.WorkRequest_Results{Results: &appv1.Results{Number: number, Results: results}}})
		if err != nil {
			return err
		}
		number++
	}
}
