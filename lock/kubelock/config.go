package kubelock

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
)

const (
	// DefaultLeaseDuration is how long a Lease lives without renewal unless [Config] says otherwise.
	DefaultLeaseDuration = 15 * time.Second
	// DefaultRenewDeadline is how long a leader tries to renew unless [Config] says otherwise.
	DefaultRenewDeadline = 10 * time.Second
	// DefaultRetryPeriod is the time between two tries unless [Config] says otherwise.
	DefaultRetryPeriod = 2 * time.Second
)

// maxIdentityBytes lets the fence record the identity as a holder.
const maxIdentityBytes = 200

// Config configures an election. [New] and [Run] validate it.
type Config struct {
	// Client connects to the API server: clientset.CoordinationV1(). Its user needs get, create and update on leases in
	// the namespace. Required.
	Client coordinationclient.LeasesGetter
	// Lease names the Lease. It is created if it is missing; its namespace is not. Required.
	Lease types.NamespacedName
	// Resource is what the leader's grant is for. Each resource has one Lease, and each Lease one resource. Required.
	Resource string
	// Identity names this candidate, in the Lease and in the fence. It must be unique among processes. Defaults to the
	// host name and a random part.
	Identity string
	// Armer raises the fence before the leader's work begins. If it is an [Inspector],
	// the update that takes the Lease raises the token above the recorded one.
	// Defaults to nil: there is no fence, and tokens restart if the Lease is deleted.
	Armer leasing.Armer
	// LeaseDuration is how long the Lease lives without renewal, in whole seconds. Arming has to fit into it. Defaults to
	// [DefaultLeaseDuration].
	LeaseDuration time.Duration
	// RenewDeadline is how long the leader tries to renew before it stops leading; less than LeaseDuration. Defaults to
	// [DefaultRenewDeadline].
	RenewDeadline time.Duration
	// RetryPeriod is the time between two tries. It must be less than RenewDeadline / 1.2. Defaults to
	// [DefaultRetryPeriod].
	RetryPeriod time.Duration
	// Logger logs what no caller receives as an error, including client-go's messages. Defaults to discarding it.
	Logger *slog.Logger

	clock *clock.Clock // of tests
}

// complete sets the defaults and validates the rest. The error is a [*fence.InvalidError].
func (c Config) complete() (Config, error) {
	c.LeaseDuration = cmp.Or(c.LeaseDuration, DefaultLeaseDuration)
	c.RenewDeadline = cmp.Or(c.RenewDeadline, DefaultRenewDeadline)
	c.RetryPeriod = cmp.Or(c.RetryPeriod, DefaultRetryPeriod)
	if c.Identity == "" {
		host, _ := os.Hostname()
		c.Identity = cmp.Or(host, "unknown") + "_" + rand.Text()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if err := fence.ValidateResource(c.Resource); err != nil {
		return c, err
	}
	switch {
	case c.Client == nil:
		return c, &fence.InvalidError{Field: "client", Reason: "is missing"}
	case c.Lease.Name == "" || c.Lease.Namespace == "":
		return c, &fence.InvalidError{Field: "lease", Reason: "needs a namespace and a name"}
	case len(c.Identity) > maxIdentityBytes:
		return c, &fence.InvalidError{Field: "identity", Reason: fmt.Sprintf("is %d bytes long; at most %d are allowed", len(c.Identity), maxIdentityBytes)}
	case !utf8.ValidString(c.Identity) || strings.ContainsFunc(c.Identity, unicode.IsControl):
		return c, &fence.InvalidError{Field: "identity", Reason: "is not valid UTF-8 without control characters"}
	}
	return c, c.validateTimes()
}

func (c Config) validateTimes() error {
	switch {
	// a Lease holds whole seconds: candidates would wait for less
	case c.LeaseDuration < time.Second || c.LeaseDuration%time.Second != 0:
		return &fence.InvalidError{Field: "lease duration", Reason: fmt.Sprintf("is %v; it must be whole seconds", c.LeaseDuration)}
	case c.LeaseDuration > 24*time.Hour:
		return &fence.InvalidError{Field: "lease duration", Reason: fmt.Sprintf("is %v; at most 24h is allowed", c.LeaseDuration)}
	case c.RenewDeadline >= c.LeaseDuration:
		return &fence.InvalidError{
			Field: "renew deadline", Reason: fmt.Sprintf("is %v; it must be less than the lease duration, %v", c.RenewDeadline, c.LeaseDuration),
		}
	case c.RetryPeriod <= 0 || c.RenewDeadline <= time.Duration(leaderelection.JitterFactor*float64(c.RetryPeriod)):
		return &fence.InvalidError{
			Field:  "retry period",
			Reason: fmt.Sprintf("is %v; it must be positive, and %v times less than the renew deadline, %v", c.RetryPeriod, leaderelection.JitterFactor, c.RenewDeadline),
		}
	}
	return nil
}

// callTimeout bounds a request, so that one without an answer does not cost the leadership. The bound is client-go's.
func (c Config) callTimeout() time.Duration { return max(time.Second, c.RenewDeadline/2) }
