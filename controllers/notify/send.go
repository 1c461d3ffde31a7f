package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/controllers/egress"
	"github.com/keelson-io/keelson/registry"
)

const (
	// sendTimeout bounds a message with its response.
	sendTimeout = 15 * time.Second
	// answerSize bounds the part of a response that is read, in bytes.
	answerSize = 4 << 10
	// longestWait bounds the wait that a server may demand.
	longestWait = time.Hour
)

// SendError reports that a message was not taken. It names no URL from a Secret, and nothing else
// of a Secret or a response.
type SendError struct {
	Problem string
	// Status of the response; 0: there was none.
	Status int
	// After is the wait that the server demands; 0: it names none.
	After time.Duration
}

// Error implements error.
func (e *SendError) Error() string { return e.Problem }

// refused reports whether the server refuses the message itself: it would refuse a retry, too.
func (e *SendError) refused() bool {
	return e.Status == http.StatusBadRequest || e.Status == http.StatusRequestEntityTooLarge || e.Status == http.StatusUnprocessableEntity
}

// Sent describes what was sent.
type Sent struct {
	// URL is the address if git names it; else it names the key that holds the address.
	URL string `json:"url"`
	// Signed means with an HMAC; Token means with a bearer token.
	Signed bool   `json:"signed"`
	Token  bool   `json:"token"`
	Body   []byte `json:"-"`
	// Status of the response; 0: there was none.
	Status int `json:"status"`
}

// Sender sends messages. All fields are required.
type Sender struct {
	// Secrets reads a Secret of the hub.
	Secrets func(ctx context.Context, namespace, name string) (map[string][]byte, error)
	// Hide is called with what has to be redacted.
	Hide func(owner string, secrets ...string)
	Now  func() time.Time

	client *http.Client
}

// NewSender returns a Sender that sends through a transport; nil: a transport of [egress] to every
// address that is not reserved.
func NewSender(s Sender, by http.RoundTripper) *Sender {
	if by == nil {
		by = egress.Policy{}.Transport()
	}
	s.client = &http.Client{Transport: by, Timeout: sendTimeout, CheckRedirect: egress.StayThere}
	return &s
}

// destination is the destination of a message, with its secrets.
type destination struct {
	address     *url.URL
	shown       string
	key, bearer string
}

// destination reads the Secret of a notification at each call, so a change counts at once.
func (s *Sender) destination(ctx context.Context, n *registry.Notification) (destination, error) {
	server, kind := n.Server()
	t, address := destination{shown: server.URL}, server.URL
	if server.Secret != "" {
		name := fmt.Sprintf("Secret %s/%s in the hub", v1alpha1.Namespace, server.Secret)
		data, err := s.Secrets(ctx, v1alpha1.Namespace, server.Secret)
		if err != nil {
			return t, fmt.Errorf("read %s: %w", name, err)
		}
		value := func(key string) string { return strings.TrimSpace(string(data[key])) }
		if address == "" {
			address, t.shown = value(v1alpha1.NotificationURL), fmt.Sprintf("the key %s of %s", v1alpha1.NotificationURL, name)
		}
		if kind == "webhook" {
			t.key, t.bearer = value(v1alpha1.NotificationHMAC), value(v1alpha1.NotificationToken)
		}
		s.Hide("notification "+n.Name, hidden(value(v1alpha1.NotificationURL), t.key, t.bearer)...)
		if address == "" {
			return t, fmt.Errorf("%s has no key %q", name, v1alpha1.NotificationURL)
		}
		if t.bearer != "" && server.URL != "" {
			return t, fmt.Errorf("%s has a key %q, and it goes only where the same Secret says: move the url of %s into it", name, v1alpha1.NotificationToken, n.At().File)
		}
	}
	u, err := url.Parse(address)
	if err != nil {
		return t, fmt.Errorf("%s is not an http or https URL", t.shown) // err would reveal the address
	}
	t.address = u
	return t, t.check(server.URL == "")
}

// check returns why nothing may be sent there. secret means that the address is not from git.
func (t destination) check(secret bool) error {
	switch u := t.address; {
	case u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%s is not an http or https URL", t.shown)
	case u.Scheme == "http" && (secret || t.bearer != "") && !loopback(u.Hostname()):
		return fmt.Errorf("%s would be sent without encryption: use https", t.shown)
	case strings.ContainsFunc(t.bearer, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("the token for %s must be on one line, in ASCII", t.shown)
	}
	return nil
}

// hidden returns the secrets, and the parts of a URL that make it a secret. A short path is left
// out: it may be a common word in texts.
func hidden(address string, secrets ...string) []string {
	const least = 16
	out := append([]string{address}, secrets...)
	u, err := url.Parse(address)
	if err != nil {
		return out
	}
	for _, part := range []string{strings.Trim(u.EscapedPath(), "/"), u.RawQuery} {
		if len(part) >= least {
			out = append(out, part)
		}
	}
	if password, set := u.User.Password(); set {
		out = append(out, password)
	}
	return out
}

// Send sends a message, once. The error is a [*SendError], or says why there is no target. It names
// no secret.
func (s *Sender) Send(ctx context.Context, n *registry.Notification, m v1alpha1.Message) (Sent, error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	data, err := Body(n, m)
	if err != nil {
		return Sent{}, err
	}
	t, err := s.destination(ctx, n)
	sent := Sent{URL: t.shown, Body: data, Signed: t.key != "", Token: t.bearer != ""}
	if err != nil {
		return sent, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, t.address.String(), bytes.NewReader(data))
	if err != nil {
		return sent, &SendError{Problem: t.shown + " can't be used as a URL"}
	}
	request.Header.Set("Content-Type", "application/json; charset=utf-8")
	request.Header.Set("User-Agent", "keelson")
	if t.key != "" {
		mac := hmac.New(sha256.New, []byte(t.key))
		mac.Write(data)
		request.Header.Set("X-Signature", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	}
	if t.bearer != "" {
		request.Header.Set("Authorization", "Bearer "+t.bearer)
	}
	answer, err := s.client.Do(request)
	if err != nil {
		return sent, &SendError{Problem: "no answer from " + t.shown + ": " + egress.Failure(err, sendTimeout)}
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.CopyN(io.Discard, answer.Body, answerSize) // so that the connection can be used again
	sent.Status = answer.StatusCode
	switch answer.StatusCode / 100 {
	case 2:
		return sent, nil
	case 3:
		return sent, &SendError{Problem: fmt.Sprintf("%s answers %d, which leads elsewhere: nothing is sent there; give the url that it is at", t.shown, answer.StatusCode), Status: answer.StatusCode}
	}
	return sent, &SendError{
		Problem: strings.TrimSpace(fmt.Sprintf("%s answers %d %s", t.shown, answer.StatusCode, http.StatusText(answer.StatusCode))),
		Status:  answer.StatusCode, After: s.after(answer.Header.Get("Retry-After")),
	}
}

// after parses a Retry-After: seconds, or a time.
func (s *Sender) after(text string) time.Duration {
	wait := time.Duration(0)
	if seconds, err := strconv.ParseInt(text, 10, 32); err == nil {
		wait = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		wait = at.Sub(s.Now())
	}
	return min(max(wait, 0), longestWait)
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
