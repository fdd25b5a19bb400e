package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"time"
)

// limits is what a broker allows and how it counts, as its admin API says.
type limits struct {
	unackedConsumer     int // the least of all topics
	unackedSubscription int // the least of all topics
	batchIndexAcks      string
}

// probeTimeout bounds each question to the admin API.
const probeTimeout = 5 * time.Second

// errCounting says that events would never be acked: a broker that acks whole entries
// forgets what it is told about single events.
var errCounting = errors.New("source: single events are to be acked (batch_index_acks), and the broker acks whole entries only: " +
	"turn this off, or acknowledgmentAtBatchIndexLevelEnabled on at all brokers")

// probe asks the admin API for the limits of topics, with the policies of topic and
// namespace applied. The topics have to exist.
func probe(ctx context.Context, url, token string, topics []string) (limits, error) {
	l := limits{unackedConsumer: math.MaxInt32, unackedSubscription: math.MaxInt32}
	url = strings.TrimSuffix(url, "/") + "/admin/v2/"
	for _, topic := range topics {
		path := url + strings.Replace(topic, "://", "/", 1)
		for name, least := range map[string]*int{
			"/maxUnackedMessagesOnConsumer":     &l.unackedConsumer,
			"/maxUnackedMessagesOnSubscription": &l.unackedSubscription,
		} {
			var n int
			if err := ask(ctx, path+name+"?applied=true", token, &n); err != nil {
				return limits{}, err
			}
			if n > 0 { // 0 is no limit
				*least = min(*least, n)
			}
		}
	}
	settings := map[string]string{}
	// Only administrators may ask this; who must not goes by the configuration.
	if err := ask(ctx, url+"brokers/configuration/runtime", token, &settings); err == nil {
		l.batchIndexAcks = settings["acknowledgmentAtBatchIndexLevelEnabled"]
	}
	return l, nil
}

func ask(ctx context.Context, url, token string, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("source: admin API: %w", err)
	}
	request.Close = true // nothing more to ask
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("source: admin API: %w", err)
	}
	defer response.Body.Close()
	const answerMax = 1 << 20
	body, err := io.ReadAll(io.LimitReader(response.Body, answerMax))
	if err != nil {
		return fmt.Errorf("source: admin API: %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("source: admin API: %s: %s", url, response.Status)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("source: admin API: %s: %w", url, err)
	}
	return nil
}
