package receiver_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/keelson-io/keelson/controllers/receiver"
)

// What GitHub's documentation and the Standard Webhooks specification publish for
// testing.
const (
	githubSecret   = "It's a Secret to Everybody"
	githubBody     = "Hello, World!"
	githubSum      = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
	standardSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	standardID     = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	standardTime   = 1614265330
	standardBody   = `{"test": 2432232314}`
	standardSum    = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	otherSecret    = "of another host, long enough"
)

// server takes webhooks as keelson controller does, and counts fetches.
type server struct {
	url     string
	fetches atomic.Int32
}

func serve(t *testing.T) *server {
	t.Helper()
	s := &server{}
	r := receiver.New(receiver.Options{
		Secrets: func() ([]receiver.Secret, error) {
			return []receiver.Secret{otherSecret, githubSecret, standardSecret}, nil
		},
		Fetch: func() { s.fetches.Add(1) },
		Log:   slog.New(slog.DiscardHandler),
		Now:   func() time.Time { return time.Unix(standardTime+60, 0) },
	})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving := r.Server()
	done := make(chan error, 1)
	go func() { done <- serving.Serve(listener) }()
	t.Cleanup(func() {
		if err := serving.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	s.url = "http://" + listener.Addr().String() + "/hook"
	return s
}

func (s *server) post(t *testing.T, body io.Reader, headers map[string]string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url, body)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	standard := func(change map[string]string) map[string]string {
		h := map[string]string{
			"webhook-id": standardID, "webhook-timestamp": strconv.Itoa(standardTime), "webhook-signature": standardSum,
		}
		maps.Copy(h, change)
		return h
	}
	cases := map[string]struct {
		why     string
		headers map[string]string
		body    string
		status  int
		says    string
	}{
		"GitHub": {
			why: "the example of GitHub's documentation", body: githubBody, status: 202,
			headers: map[string]string{"X-Hub-Signature-256": "sha256=" + githubSum},
		},
		"Gitea": {
			why: "Gitea signs in hex, without a prefix", body: githubBody, status: 202,
			headers: map[string]string{"X-Gitea-Signature": githubSum},
		},
		"Forgejo": {
			why: "Forgejo as Gitea, by its own name", body: githubBody, status: 202,
			headers: map[string]string{"X-Forgejo-Signature": githubSum},
		},
		"Standard": {
			why: "GitLab's signing token: the example of the specification", body: standardBody, status: 202,
			headers: standard(nil),
		},
		"StandardTwo": {
			why: "while a secret is being replaced there are two signatures", body: standardBody, status: 202,
			headers: standard(map[string]string{"webhook-signature": "v1," + strings.Repeat("A", 43) + "= " + standardSum}),
		},
		"StandardOld": {
			why: "what was recorded an hour ago is not heard", body: standardBody, status: 401, says: "five minutes",
			headers: standard(map[string]string{"webhook-timestamp": strconv.Itoa(standardTime - 3600)}),
		},
		"StandardTime": {
			why: "the time is signed, too", body: standardBody, status: 401, says: "signature",
			headers: standard(map[string]string{"webhook-timestamp": strconv.Itoa(standardTime + 1)}),
		},
		"GitLab": {
			why: "older GitLab sends the secret itself", body: "{}", status: 202,
			headers: map[string]string{"X-Gitlab-Token": otherSecret},
		},
		"GitLabWrong": {
			why: "a token that only begins like the secret is none", body: "{}", status: 401,
			headers: map[string]string{"X-Gitlab-Token": otherSecret[:20]},
		},
		"Unsigned": {why: "whoever can reach the port can send this", body: githubBody, status: 401, says: "X-Hub-Signature-256"},
		"Forged": {
			why: "one bit of the body is another", body: "Hello, World?", status: 401, says: "not by a secret",
			headers: map[string]string{"X-Hub-Signature-256": "sha256=" + githubSum},
		},
		"SHA1": {
			why: "the older header of GitHub is not enough", body: githubBody, status: 401,
			headers: map[string]string{"X-Hub-Signature": "sha1=d03207e4b030cf234e3447bac4d93add4c6643d8"},
		},
		"NoHex": {
			why: "a signature that can't be one needs no body", body: githubBody, status: 401,
			headers: map[string]string{"X-Hub-Signature-256": "sha256=secret"},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			status, text := s.post(t, strings.NewReader(c.body), c.headers)
			if status != c.status || !strings.Contains(text, c.says) {
				t.Errorf("got %d %q, want %d with %q: %s", status, text, c.status, c.says, c.why)
			}
			if want := int32(map[bool]int{true: 1}[c.status == 202]); s.fetches.Load() != want {
				t.Errorf("%d fetches, want %d: %s", s.fetches.Load(), want, c.why)
			}
		})
	}
}

// TestMethods: nothing but a POST to /hook is anything.
func TestMethods(t *testing.T) {
	t.Parallel()
	s := serve(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d, %v", answer.StatusCode, err)
	}
}

// TestTooLarge: a body over the limit is refused, whether it says its length or
// not, and however it is signed.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	large := bytes.Repeat([]byte("x"), 26<<20)
	mac := hmac.New(sha256.New, []byte(githubSecret))
	mac.Write(large)
	headers := map[string]string{"X-Hub-Signature-256": "sha256=" + hex.EncodeToString(mac.Sum(nil))}
	for name, body := range map[string]func() io.Reader{
		"Length":  func() io.Reader { return bytes.NewReader(large) },
		"Chunked": func() io.Reader { return io.MultiReader(bytes.NewReader(large)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url, body())
			if err != nil {
				t.Fatal(err)
			}
			for name, value := range headers {
				req.Header.Set(name, value)
			}
			answer, err := http.DefaultClient.Do(req)
			// The connection may be cut before the answer is read.
			if err == nil {
				if err := answer.Body.Close(); err != nil {
					t.Error(err)
				}
				if answer.StatusCode != http.StatusRequestEntityTooLarge {
					t.Errorf("got %s", answer.Status)
				}
			}
			if n := s.fetches.Load(); n != 0 {
				t.Errorf("%d fetches", n)
			}
		})
	}
}
