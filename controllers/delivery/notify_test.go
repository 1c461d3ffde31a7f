package delivery_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/connect"
	"github.com/keelson-io/keelson/controllers/notify"
)

// hook is a server that takes messages of notifications, and checks who they are from.
type hook struct {
	*httptest.Server
	mu     sync.Mutex
	events []string
}

// The paths of the server: one takes messages, the other one never does. A process that is stopped
// may leave a request behind, which arrives at any time after that. So it is the address that says
// whether the server is down, and not the time.
const (
	hookPath = "/secret-path-of-the-hook"
	downPath = "/secret-path-of-the-hook-when-it-is-down"
)

func newHook(t *testing.T) *hook {
	h := &hook{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var m v1alpha1.Message
		if err := json.Unmarshal(body, &m); err != nil || r.URL.Path != hookPath && r.URL.Path != downPath || !strings.HasPrefix(r.Header.Get("X-Signature"), "sha256=") {
			t.Errorf("a message that is none: %v: %s to %s", err, body, r.URL)
		}
		if r.URL.Path == downPath {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, e := range m.Events {
			h.events = append(h.events, strings.Join(strings.Fields(string(e.Event)+" "+e.Stage+" "+e.Version), " "))
		}
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *hook) heard() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events)
}

// TestNotifications: a rollout's steps arrive at a server, from the hub's objects, by a
// Secret's address; those that came while the server was down or no controller ran, when
// both do again; and nothing twice.
func TestNotifications(t *testing.T) {
	tr := newTrain(t)
	h := newHook(t)
	if err := tr.hub.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.Namespace}}); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.Namespace, Name: tr.name},
		Data:       map[string][]byte{"url": []byte(h.URL + hookPath), "hmacKey": []byte("the-key-of-the-hook")},
	}
	if err := tr.hub.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	moves := func(path string) {
		t.Helper()
		secret.Data["url"] = []byte(h.URL + path)
		if err := tr.hub.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	secrets, err := connect.SecretsOf(server)
	if err != nil {
		t.Fatal(err)
	}
	tr.sender = notify.NewSender(notify.Sender{Secrets: secrets, Hide: func(string, ...string) {}, Now: time.Now}, nil)
	told := func() string {
		var c corev1.ConfigMap
		_ = tr.hub.Get(context.WithoutCancel(t.Context()), client.ObjectKey{Namespace: v1alpha1.Namespace, Name: notify.SentStateName(tr.name, "hook")}, &c)
		return c.ResourceVersion
	}
	tr.begin()
	tr.write("notifications/hook.yaml", head+"Notification\ninterval: 1s\npipelines: [standard]\nwebhook: {secret: CLUSTER}\n")
	tr.commit("a notification")
	tr.eventually("the notification begins", func() bool { return told() != "" })
	moves(downPath)
	tr.release("v1.1.0", "bad") // which fails in testing
	tr.phase(v1alpha1.RolloutPaused, "the text is bad")
	tr.eventually("it was tried", func() bool { return strings.Contains(tr.log.String(), "answers 503") })
	tr.stops()
	moves(hookPath)
	tr.stops = tr.start(tr.connect)
	want := []string{"delivery-failing v1.1.0", "rollout-failed testing v1.1.0", "rollout-started v1.1.0", "stage-opened testing v1.1.0"}
	tr.eventually("the failure was told", func() bool { return len(h.heard()) >= len(want) })
	before := told()
	tr.release("v1.2.0", "better")
	tr.have("better better hello hello")
	tr.eventually("the cure was told, and that is remembered", func() bool {
		return slices.Contains(h.heard(), "stage-passed testing v1.2.0") && slices.Contains(h.heard(), "delivery-recovered") && told() != before
	})
	tr.stops()
	got := h.heard()[:len(want)]
	slices.Sort(got)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("what was told of the failure (-want +got):\n%s", diff)
	}
	for _, event := range want {
		if n := strings.Count(strings.Join(h.heard(), "\n")+"\n", event+"\n"); n != 1 {
			t.Errorf("%q was told %d times: %q", event, n, h.heard())
		}
	}
	if strings.Contains(tr.log.String(), "secret-path") || strings.Contains(tr.log.String(), "the-key-of") {
		t.Error("the log shows a secret")
	}
}
