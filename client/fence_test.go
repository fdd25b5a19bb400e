package client_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/ringfence/router/client"
)

func ExampleFence_Before() {
	// The comparison that a database makes, with numbers or with text.
	newest := client.Fence{Token: 4194310, Turn: 17}
	late := client.Fence{Token: 4194310, Turn: 16} // an earlier delivery by the same owner
	fmt.Println(late.Before(newest), late.String() < newest.String())
	fmt.Println(newest)
	// Output:
	// true true
	// 0000000000004194310.00000000000000000017
}

func TestFenceGoesThroughText(t *testing.T) {
	want := map[client.Fence]client.Fence{{Token: 1 << 62, Turn: 9}: {Token: 1, Turn: 1 << 63}}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got map[client.Fence]client.Fence
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for k, v := range want {
		if len(got) != 1 || got[k] != v {
			t.Errorf("%s came back as %v, want %v", text, got, want)
		}
	}
	kept := client.Fence{Token: 5}
	if err := kept.UnmarshalText([]byte("5")); !errors.Is(err, client.ErrFence) || kept.Token != 5 {
		t.Errorf("a text that is none: %v, %v; want ErrFence and the fence as it was", kept, err)
	}
}
