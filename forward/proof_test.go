package forward

import (
	"crypto/ed25519"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
)

// keyOf returns the key of the n-th peer of a test.
func keyOf(n byte) ed25519.PrivateKey {
	seed := make([]byte, ed25519.SeedSize)
	seed[0] = n
	return ed25519.NewKeyFromSeed(seed)
}

func public(key ed25519.PrivateKey) ed25519.PublicKey { return key.Public().(ed25519.PublicKey) }

// A proof counts for one nonce, one caller and one callee, and one key.
func TestProofIsBoundToItsStream(t *testing.T) {
	var nonce, other [nonceSize]byte
	other[nonceSize-1] = 1
	caller, callee := peerNumber(1), peerNumber(2)
	signature := signProof(keyOf(1), nonce, caller, callee)
	if !verifyProof(public(keyOf(1)), nonce, caller, callee, signature) {
		t.Fatal("a good proof is refused")
	}
	for name, ok := range map[string]bool{
		"another nonce":           verifyProof(public(keyOf(1)), other, caller, callee, signature),
		"another caller":          verifyProof(public(keyOf(1)), nonce, peerNumber(3), callee, signature),
		"another callee":          verifyProof(public(keyOf(1)), nonce, caller, peerNumber(3), signature),
		"another key":             verifyProof(public(keyOf(2)), nonce, caller, callee, signature),
		"no key":                  verifyProof(nil, nonce, caller, callee, signature),
		"no signature":            verifyProof(public(keyOf(1)), nonce, caller, callee, nil),
		"a signature of the rest": verifyProof(public(keyOf(1)), nonce, caller, callee, ed25519.Sign(keyOf(1), nonce[:])),
	} {
		if ok {
			t.Errorf("a proof counts with %s", name)
		}
	}
}

// A member proves its identity before its first window. Its key may become known after the proof
// arrived. A member with another key, or none, proves nothing.
func TestWindowsSayWhetherTheirSenderIsProven(t *testing.T) {
	for name, test := range map[string]struct {
		signs, known, later ed25519.PrivateKey
		want                []bool
	}{
		"its own key":         {signs: keyOf(1), known: keyOf(1), want: []bool{true, true}},
		"a key known later":   {signs: keyOf(1), later: keyOf(1), want: []bool{false, true}},
		"a key of its own":    {signs: keyOf(9), known: keyOf(1), want: []bool{false, false}},
		"no key":              {known: keyOf(1), want: []bool{false, false}},
		"a key nobody put up": {signs: keyOf(1), want: []bool{false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network, now := &pipes{}, bubbleClock()
				a, b := newNode(t, network, 1, DefaultConfig(), now), newNode(t, network, 2, DefaultConfig(), now)
				a.identity.Key = test.signs
				know := func(key ed25519.PrivateKey) {
					if key != nil {
						b.mu.Lock()
						b.keys = map[Peer]ed25519.PublicKey{a.identity.Incarnation: public(key)}
						b.mu.Unlock()
					}
				}
				know(test.known)
				b.start()
				defer b.stop()
				a.start()
				defer a.stop()
				a.route(fixedRoute{owners: []Peer{b.identity.Incarnation}}, b)
				for range 2 {
					a.pool.HandOver(b.identity.Incarnation, finished(1, 3))
					<-a.pool.HandedOver()
					time.Sleep(100 * time.Millisecond) // of the bubble
					synctest.Wait()
					know(test.later)
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				if !slices.Equal(b.proven, test.want) {
					t.Errorf("windows are proven: %v, want %v", b.proven, test.want)
				}
			})
		})
	}
}

// A stream with a second proof is ended, and one of a caller that knows of no proofs works.
func TestProofComesOnceOrNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network, now := &pipes{}, bubbleClock()
		b := newNode(t, network, 2, DefaultConfig(), now)
		b.start()
		defer b.stop()
		conn, err := grpc.NewClient("passthrough:///"+b.name(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(network.dial))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		st, err := peerv1.NewPeerServiceClient(conn).Forward(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		older := Identity{Group: "g", HashID: b.identity.HashID, Member: "old", Incarnation: peerNumber(1)}
		send := func(f *peerv1.ForwardRequest) {
			if err := st.Send(f); err != nil {
				t.Fatal(err)
			}
		}
		send(&peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Hello{Hello: older.hello(b.identity.Incarnation)}})
		answer, err := st.Recv()
		if err != nil || len(answer.GetHello().GetNonce()) != nonceSize {
			t.Fatalf("answer %v, %v, want a Hello with a nonce", answer, err)
		}
		window := &peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Window{Window: encodeWindow(now(), finished(1, 1))}}
		proof := &peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Proof{Proof: &peerv1.Proof{Signature: []byte("forged")}}}
		send(window)
		send(proof)
		send(window)
		synctest.Wait()
		b.mu.Lock()
		if !slices.Equal(b.proven, []bool{false, false}) {
			t.Errorf("windows are proven: %v", b.proven)
		}
		b.mu.Unlock()
		send(proof)
		for err == nil {
			_, err = st.Recv()
		}
		if refused := testutil.ToFloat64(b.metrics.refused[refusedFrame]); refused != 1 {
			t.Errorf("%v streams refused, want 1: %v", refused, err)
		}
	})
}
