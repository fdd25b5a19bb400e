package entries

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/ringfence/router/internal/broker/pulsartest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, pulsartest.LeftBehind()...) }
