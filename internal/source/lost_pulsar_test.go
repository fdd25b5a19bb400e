package source_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/source/sourcetest"
	"github.com/ringfence/router/internal/testing/eventually"
)

// An operator may delete a topic or its subscription under a running router, or skip its backlog. The other topic is read all the time. A topic that the
// broker does not create again counts as unread until somebody else creates it; then it is read from its beginning.
func TestWhatOperatorsDoToATopicThatIsRead(t *testing.T) {
	b := newPulsarBroker(t)
	namespace := "public/" + pulsartest.Name(t)
	pulsartest.Admin(t, http.MethodPut, "namespaces/"+namespace, nil, nil)
	prefix := "persistent://" + namespace + "/"
	for _, partitions := range []int{0, 2} {
		t.Run(fmt.Sprintf("of %d partitions", partitions), func(t *testing.T) {
			one, other := fmt.Sprint(prefix, "one", partitions), fmt.Sprint(prefix, "other", partitions)
			create := func(partitions int) {
				t.Helper()
				if partitions == 0 {
					pulsartest.Admin(t, http.MethodPut, pulsaradmin.TopicPath(one), nil, nil)
				} else {
					pulsartest.Admin(t, http.MethodPut, pulsaradmin.TopicPath(one)+"/partitions", partitions, nil)
				}
			}
			remove := func() {
				t.Helper()
				path := pulsaradmin.TopicPath(one)
				if partitions > 0 {
					path += "/partitions"
				}
				pulsartest.Admin(t, http.MethodDelete, path+"?force=true", nil, nil)
			}
			creates := func(may bool) {
				t.Helper()
				pulsartest.Admin(t, http.MethodPost, "namespaces/"+namespace+"/autoTopicCreation", map[string]any{"allowAutoTopicCreation": may, "topicType": "non-partitioned"}, nil)
			}
			creates(true)
			create(partitions)
			cfg := sourcetest.Config(one, other)
			cfg.FromEarliest = true
			m := sourcetest.Start(t, b.Source(t, cfg))
			n := 0
			handles := func(topic, when string) {
				t.Helper()
				n++
				want := fmt.Sprint(when, " ", n)
				b.Publish(t, topic, sourcetest.Message{Key: "k", Payload: want})
				for got := ""; got != want; { // a new subscription begins with the oldest event, so earlier ones come again
					e := m.Take(1)[0]
					m.Done(e)
					got = string(e.Event.Payload)
				}
			}
			lost := func() bool { return m.Unread()[source.FullTopicName(one)] != nil }
			handles(one, "at first")
			handles(other, "at first")

			pulsartest.Admin(t, http.MethodDelete, pulsaradmin.TopicPath(one)+"/subscription/"+sourcetest.Subscription+"?force=true", nil, nil)
			handles(one, "without its subscription")
			b.Publish(t, one, sourcetest.Message{Key: "k", Payload: "open"})
			open := m.Take(1)[0]
			admin, skip := pulsaradmin.Client{URL: pulsartest.AdminURL(t)}, pulsaradmin.TopicPath(one)+"/subscription/"+sourcetest.Subscription+"/skip_all"
			eventually.NoError(t, eventually.Most, "the subscription is back in every partition", func() error {
				return admin.Call(t.Context(), http.MethodPost, skip, nil, nil)
			})
			m.Done(open)
			handles(one, "with a skipped backlog")

			creates(false)
			remove()
			eventually.True(t, "the deleted topic counts as unread", lost)
			handles(other, "without the deleted topic")
			create(partitions)
			handles(one, "created again")
			eventually.True(t, "the topic counts as read", func() bool { return !lost() })
			handles(other, "at the end")

			if partitions > 0 { // somebody makes it without partitions
				remove()
				eventually.True(t, "the deleted topic counts as unread", lost)
				create(0)
				handles(one, "created without partitions")
				eventually.True(t, "the topic counts as read", func() bool { return !lost() })
				return
			}
			creates(true)
			remove()
			handles(one, "created by the broker")
		})
	}
}
