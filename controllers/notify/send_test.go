package notify

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer/redact"
)

// server is a server on this machine that keeps what it is sent.
type server struct {
	*httptest.Server
	mu     sync.Mutex
	posts  []*http.Request
	bodies [][]byte
	answer func(http.ResponseWriter, *http.Request)
}

func newServer(t testing.TB) *server {
	t.Helper()
	s := &server{answer: func(http.ResponseWriter, *http.Request) {}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.posts, s.bodies = append(s.posts, r), append(s.bodies, body)
		answer := s.answer
		s.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// sending is a sender that knows one Secret, and the redactor that it tells of it.
func sending(secret map[string]string) (*Sender, *redact.Redactor) {
	hidden := redact.New()
	return NewSender(Sender{
		Secrets: func(_ context.Context, namespace, name string) (map[string][]byte, error) {
			if namespace != v1alpha1.Namespace || name != "hook" {
				return nil, errors.New("not found")
			}
			data := map[string][]byte{}
			for key, value := range secret {
				data[key] = []byte(value)
			}
			return data, nil
		},
		Hide: hidden.Hide, Now: time.Now,
	}, nil), hidden
}

func notification(t testing.TB, text string) *registry.Notification {
	t.Helper()
	f := newFleet(t, map[string]string{"notifications/a.yaml": head + "Notification\n" + text + "\n"})
	n := f.Notification("a")
	if len(n.Problems) > 0 {
		t.Fatal(n.Problems)
	}
	return n
}

func sample(t testing.TB, n *registry.Notification) v1alpha1.Message {
	t.Helper()
	m, err := envelope{"earth", n, 7, time.Unix(1_800_000_000, 0), func(s string) string { return s }}.message(many(v1alpha1.DeliveryFailing, 2, 1))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestSendWebhook: who has the key can tell that a message is Keelson's, and reads all
// that there is to know from it.
func TestSendWebhook(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	sender, _ := sending(map[string]string{"url": s.URL + "/in?of=keelson\n", "hmacKey": "the key\n", "token": "the-token"})
	n := notification(t, "webhook: {secret: hook}")
	sent, err := sender.Send(t.Context(), n, sample(t, n))
	if err != nil {
		t.Fatal(err)
	}
	r, body := s.posts[0], s.bodies[0]
	mac := hmac.New(sha256.New, []byte("the key"))
	mac.Write(body)
	if want := "sha256=" + hex.EncodeToString(mac.Sum(nil)); r.Header.Get("X-Signature") != want {
		t.Errorf("signature %q, want %q", r.Header.Get("X-Signature"), want)
	}
	if r.Method != http.MethodPost || r.URL.RequestURI() != "/in?of=keelson" || r.Header.Get("Authorization") != "Bearer the-token" || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
	}
	var got v1alpha1.Message
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	want := v1alpha1.Message{
		APIVersion: "keelson.io/v1alpha1", Kind: "Message", ID: got.ID, Time: got.Time, Fleet: "earth", Notification: "a", Severity: v1alpha1.SeverityError,
		Text: "[earth] c000 v1.0.0 fails on k000, k001: its pods crash",
		Events: []v1alpha1.MessageEvent{{
			Event: v1alpha1.DeliveryFailing, Severity: v1alpha1.SeverityError, Component: "c000", Clusters: []string{"k000", "k001"}, Count: 2, Version: "v1.0.0",
			Reason: "its pods crash", Message: "c000 v1.0.0 fails on k000, k001: its pods crash",
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" || got.ID == "" || got.Time.Unix() != 1_800_000_000 {
		t.Errorf("at %s (-want +got):\n%s", got.Time, diff)
	}
	if !sent.Signed || !sent.Token || sent.Status != http.StatusOK || strings.Contains(sent.URL, s.URL) {
		t.Errorf("sent: %+v", sent)
	}
}

// TestSendSlack: what Slack takes.
func TestSendSlack(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	sender, _ := sending(map[string]string{"url": s.URL, "hmacKey": "k", "token": "not for slack"})
	n := notification(t, "text: \":fire: $(severity) $(count) $(cluster) <b> & $(reason)\"\nslack: {secret: hook}")
	m := sample(t, n)
	m.Events[0].Reason = "<!channel> & co"
	if _, err := sender.Send(t.Context(), n, m); err != nil {
		t.Fatal(err)
	}
	want := `{"text":":fire: error 2 k000, k001 <b> & &lt;!channel&gt; &amp; co","unfurl_links":false,"unfurl_media":false}`
	var got, wanted any
	if err := errors.Join(json.Unmarshal(s.bodies[0], &got), json.Unmarshal([]byte(want), &wanted)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wanted, got); diff != "" || s.posts[0].Header.Get("X-Signature") != "" || s.posts[0].Header.Get("Authorization") != "" {
		t.Errorf("%v (-want +got):\n%s", s.posts[0].Header, diff)
	}
}

// TestSameMessage: a message that is sent again has the same ID, and another one, however
// like it, has not.
func TestSameMessage(t *testing.T) {
	t.Parallel()
	n := notification(t, "webhook: {url: \"https://hook.example\"}")
	id := func(serial int64, second int64, clusters int) string {
		m, err := envelope{"earth", n, serial, time.Unix(second, 0), func(s string) string { return s }}.message(many(v1alpha1.DeliveryFailing, clusters, 1))
		if err != nil {
			t.Fatal(err)
		}
		return m.ID
	}
	ids := []string{id(1, 0, 1), id(1, 60, 1), id(2, 0, 1), id(1, 0, 2)}
	if ids[0] != ids[1] || ids[0] == ids[2] || ids[0] == ids[3] {
		t.Error(ids)
	}
}

// TestSendFails: what a server that does not take a message leads to; nothing of a Secret
// is in what is said of it.
func TestSendFails(t *testing.T) {
	t.Parallel()
	const secretPath = "/services/T0S3CRET/B0S3CRET"
	cases := map[string]struct {
		why     string
		file    string
		secret  map[string]string
		answer  func(http.ResponseWriter, *http.Request)
		says    string
		after   time.Duration
		refused bool
		posts   int
	}{
		"Error": {
			why: "It may pass.", answer: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "S3CRET", http.StatusBadGateway) },
			says: "the key url of Secret keelson-system/hook in the hub answers 502 Bad Gateway", posts: 1,
		},
		"Slower": {
			why: "The server names the time of the next attempt.", answer: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "42")
				w.WriteHeader(http.StatusTooManyRequests)
			}, says: "429", after: 42 * time.Second, posts: 1,
		},
		"Never": {
			why: "A wait of a year is cut to the longest one.", answer: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Retry-After", "31536000")
				w.WriteHeader(http.StatusServiceUnavailable)
			}, says: "503", after: longestWait, posts: 1,
		},
		"Refused": {
			why: "The same message would be refused again.", answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadRequest) },
			says: "400", refused: true, posts: 1,
		},
		"Redirect": {
			why: "A redirect is not followed.", answer: func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
			}, says: "307, which leads elsewhere", posts: 1,
		},
		"Long": {
			why: "An endless answer is not read to its end.", answer: func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusInternalServerError)
				for r.Context().Err() == nil {
					if _, err := w.Write(make([]byte, 1<<16)); err != nil {
						return
					}
				}
			}, says: "500", posts: 1,
		},
		"Closed": {
			why: "The server closes the connection.", answer: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			says: "no answer from the key url of Secret keelson-system/hook in the hub: it closed the connection", posts: 1,
		},
		"Down":       {why: "No server listens there.", secret: map[string]string{"url": "http://127.0.0.1:1" + secretPath}, says: "connection refused"},
		"NoSecret":   {why: "The error names the missing Secret.", file: "webhook: {secret: other}", says: "read Secret keelson-system/other in the hub: not found"},
		"NoURL":      {why: "The error names the missing key.", secret: map[string]string{"address": "x"}, says: `Secret keelson-system/hook in the hub has no key "url"`},
		"OddURL":     {why: "The error does not show an invalid URL.", secret: map[string]string{"url": "S3CRET://\x7f"}, says: "the key url of Secret keelson-system/hook in the hub is not an http or https URL"},
		"Plain":      {why: "A secret address is not sent without encryption.", secret: map[string]string{"url": "http://hook.example" + secretPath}, says: "use https"},
		"TokenInGit": {why: "A person who may write to git must not send a token to another server.", file: "webhook: {url: \"https://evil.example\", secret: hook}", secret: map[string]string{"token": "S3CRET"}, says: "move the url of notifications/a.yaml into it"},
		"OddToken":   {why: "A line break in the token would end the header.", secret: map[string]string{"url": "https://hook.example", "token": "S3CRET\nX-Other: 1"}, says: "one line"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			if c.answer != nil {
				s.answer = c.answer
			}
			if c.secret == nil {
				c.secret = map[string]string{"url": s.URL + secretPath, "hmacKey": "S3CRET-key"}
			}
			if c.file == "" {
				c.file = "webhook: {secret: hook}"
			}
			sender, _ := sending(c.secret)
			n := notification(t, c.file)
			_, err := sender.Send(t.Context(), n, sample(t, n))
			if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "S3CRET") || strings.Contains(err.Error(), "127.0.0.1") {
				t.Fatalf("%s: %v, want %q", c.why, err, c.says)
			}
			failure, _ := errors.AsType[*SendError](err)
			if failure != nil && (failure.After != c.after || failure.refused() != c.refused) {
				t.Errorf("%s: %+v", c.why, failure)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.posts) != c.posts {
				t.Errorf("%d posts, want %d", len(s.posts), c.posts)
			}
		})
	}
}

// TestSendHangs: a server that takes a message and says nothing is not waited for longer
// than the caller does.
func TestSendHangs(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	var arrived atomic.Bool
	end := make(chan struct{})
	s.answer = func(http.ResponseWriter, *http.Request) {
		arrived.Store(true)
		<-end
	}
	defer close(end)
	sender, _ := sending(map[string]string{"url": s.URL})
	n := notification(t, "slack: {secret: hook}")
	// On a busy machine the time is over before the server has the message.
	for sender.client.Timeout = 50 * time.Millisecond; !arrived.Load(); sender.client.Timeout *= 2 {
		if _, err := sender.Send(t.Context(), n, sample(t, n)); err == nil || !strings.Contains(err.Error(), "it takes longer") {
			t.Fatalf("error: %v", err)
		}
	}
}

// TestHidden: what a Secret holds is taken out of all that is said from then on.
func TestHidden(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	const path = "/services/T0123456/B0123456/abcdef"
	sender, hidden := sending(map[string]string{"url": s.URL + path, "hmacKey": "a-key-of-length", "token": "a-token-of-length"})
	n := notification(t, "webhook: {secret: hook}")
	if _, err := sender.Send(t.Context(), n, sample(t, n)); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{s.URL + path, path, "a-key-of-length", "a-token-of-length"} {
		if text := hidden.Text("it says " + secret); strings.Contains(text, strings.Trim(secret, "/")) {
			t.Errorf("shown: %s", text)
		}
	}
	if text := hidden.Text("deliveries of hook on " + s.URL[:7]); strings.Contains(text, "*") {
		t.Errorf("hidden: %s", text)
	}
}

// TestSample: a sample is about what the notification is about, and says what it is.
func TestSample(t *testing.T) {
	t.Parallel()
	f := newFleet(t, map[string]string{
		"notifications/all.yaml": head + "Notification\nslack: {secret: hook}\n",
		"notifications/odd.yaml": head + "Notification\nevents: [stage-promoted, rollout-resumed]\nclusterSelector: {matchLabels: {stage: testing}}\nslack: {secret: hook}\n",
	})
	same := func(s string) string { return s }
	for name, want := range map[string][]v1alpha1.NotificationEvent{
		"all": {v1alpha1.DeliveryFailing, v1alpha1.RolloutFailed, v1alpha1.DeliveryRecovered}, "odd": {v1alpha1.RolloutStagePromoted, v1alpha1.RolloutResumed},
	} {
		m, err := Sample(f, f.Notification(name), time.Unix(0, 0), same)
		var got []v1alpha1.NotificationEvent
		for _, e := range m.Events {
			got = append(got, e.Event)
		}
		slices.Sort(got)
		slices.Sort(want)
		if err != nil || !m.Test || !slices.Equal(got, want) || !strings.HasPrefix(m.Text, "This is a test of notification "+name) {
			t.Errorf("%s: %v, %v: %s", name, err, got, m.Text)
		}
	}
}
