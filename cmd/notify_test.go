package cmd_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestNotify: what is in git is listed with where it goes, what is tried out arrives, and
// what was sent is printed.
func TestNotify(t *testing.T) {
	t.Parallel()
	posts := make(chan string, 2)
	status := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		posts <- string(body)
		w.WriteHeader(status)
	}))
	t.Cleanup(s.Close)
	f := staged(t)
	f.keelson("notify", "list").want(t, 0).says(t, "no notifications")
	const head = "apiVersion: keelson.io/v1alpha1\nkind: Notification\n"
	f.write("notifications/oncall.yaml", head+"events: [delivery-failing]\nslack: {url: \""+s.URL+"\"}\n")
	f.write("notifications/bridge.yaml", head+"severity: warning\nclusterSelector: {matchLabels: {stage: testing}}\nwebhook: {secret: bridge}\n")
	f.commit()
	f.keelson("validate").want(t, 0)
	f.keelson("notify", "list").want(t, 0).says(t, "bridge  webhook  Secret bridge ", "oncall  slack    "+s.URL, "delivery-failing")
	f.keelson("notify", "list", "-o", "json").want(t, 0).says(t, `"to": "Secret bridge"`, `"interval": "1m0s"`, `"deliveries": 2`)
	f.keelson("notify", "test", "oncall", "--dry-run").want(t, 0).says(t, "POST to "+s.URL+", not sent", "This is a test of notification oncall")
	f.keelson("notify", "test", "oncall").want(t, 0).says(t, "POST to "+s.URL+", unsigned", "answer: 200")
	if got := <-posts; !strings.Contains(got, "none of these events has happened") || !strings.Contains(got, "fails on") || len(posts) > 0 {
		t.Errorf("it was sent %s, and %d more", got, len(posts))
	}
	status = http.StatusForbidden
	f.keelson("notify", "test", "oncall", "-o", "json").want(t, 1).says(t, `"sent": false`, `"status": 403`, `"error": "`+s.URL+` answers 403 Forbidden"`, `"text": `)
	f.keelson("notify", "test", "onkall").want(t, 2).says(t, `no notification "onkall": did you mean "oncall"?`)
	f.keelson("rbac", "--hub").want(t, 0).says(t, "- bridge\n", "-oncall\n")
	f.write("notifications/bridge.yaml", head+"webhook: {}\n")
	f.commit()
	f.keelson("validate").want(t, 1).says(t, "notifications/bridge.yaml:3:1: webhook needs a url, or a secret that holds it", "1 problem")
	f.keelson("notify", "list").want(t, 1).says(t, "broken: notifications/bridge.yaml:3:1")
	f.keelson("notify", "test", "bridge").want(t, 2).says(t, "notification bridge is broken")
}

// A list of servers that is not understood, or empty by mistake, would allow what was to be
// denied.
func TestEgressFlag(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ list, says string }{
		"Empty":    {"", "--egress names no server: is a variable empty?"},
		"HostBits": {"10.0.0.1/8", "--egress: 10.0.0.1/8 is no CIDR: write 10.0.0.0/8"},
		"URL":      {"chat.example,https://other.example/", `--egress: "https://other.example/" has no port`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keelson(t, "controller", "--listen", "", "--egress", c.list).want(t, 2).says(t, c.says)
		})
	}
}
